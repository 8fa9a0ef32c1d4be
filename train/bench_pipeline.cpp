#include "train/bench_pipeline.h"
#include "comm/collective.h"
#include "train/wall.h"
#include <algorithm>
#include <array>
#include <map>
#include <thread>

namespace triax {
namespace {

struct SleepAttributes {
  double seconds;
};
const OpKind kSleep{"sleep", [](const Target&, const Op&) { return Description{.kernels = {"sleep"}}; }};
const LaunchRegistration kRegistration{"host", "sleep", [](const Op& op, const LaunchContext&) {
                                         std::this_thread::sleep_for(
                                             std::chrono::duration<double>(op.get<SleepAttributes>().seconds));
                                       }};

/// A stage that issues what Trainer does, but sleeps instead of computing.
class Stage {
public:
  Stage(Device& device, Transport& transport, const Mesh& mesh, const PipelineSchedule& schedule,
        const StepCosts& costs)
      : device_(device), groups_(device, transport, mesh), schedule_(schedule), costs_(costs),
        actions_(pipeline_actions(schedule, mesh.coordinate(Axis::pp))) {
    groups_.make_links(Axis::pp);
    for (const PipelineAction& action : actions_)
      if (action.what != PipelineAction::What::compute)
        buffers_.push_back(device.persistent("travelling", Purpose::communication, Dtype::f32, {kElements}));
    token_ = device.persistent("token", Purpose::activations, Dtype::f32, {1});
  }
  void step() {
    groups_.begin();
    size_t buffer = 0;
    std::map<std::array<int, 3>, Event> there; // of what was received: by direction, micro-batch and chunk
    for (const PipelineAction& action : actions_) {
      const PipelineTransfer& t = action.transfer;
      if (action.what == PipelineAction::What::compute) {
        const auto needed =
            there.find({action.step.what != PipelineStep::What::forward, action.step.micro_batch, action.step.chunk});
        if (needed != there.end()) device_.compute().wait(needed->second);
        device_.compute().run(Op(kSleep).write(token_).set(
            SleepAttributes{cost_of(schedule_.kind, action.step.what, costs_) / schedule_.chunks}));
        continue;
      }
      Collectives& over = groups_.along(link_of(t));
      over.follow_compute();
      if (action.what == PipelineAction::What::send) {
        over.send(buffers_[buffer++]);
      } else {
        over.receive(buffers_[buffer++]);
        there[{t.gradient, t.micro_batch, t.chunk}] = over.stream().record();
      }
    }
  }

private:
  static constexpr int64_t kElements = 1 << 16;
  Device& device_;
  Groups groups_;
  const PipelineSchedule& schedule_;
  const StepCosts costs_;
  const std::vector<PipelineAction> actions_;
  std::vector<Tensor> buffers_; ///< one a transfer
  Tensor token_;
};

} // namespace

PipelineRow bench_pipeline(Transport& transport, PipelineKind kind, int micro_batches, int chunks,
                           const StepCosts& costs) {
  const PipelineSchedule schedule = make_schedule(kind, transport.size(), micro_batches, chunks);
  MeshShape shape;
  shape.pp = transport.size();
  const auto device = Device::open(Target{}, 1);
  Stage stage(*device, transport, Mesh(shape, transport.rank(), transport.size()), schedule, costs);
  std::vector<double> seconds;
  for (int n = 0; n < 4; ++n) { // the first one opens connections
    device->begin("pipeline");
    transport.barrier();
    const auto began = Wall::now();
    stage.step();
    device->synchronize();
    transport.barrier();
    if (n > 0) seconds.push_back(seconds_since(began));
    device->end();
  }
  std::sort(seconds.begin(), seconds.end());
  PipelineRow row;
  row.seconds = seconds[1];
  row.computing = micro_batches * (costs.forward + costs.backward + costs.weights);
  row.bubble = (row.seconds - row.computing) / row.computing;
  row.formula = bubble_formula(schedule, costs);
  return row;
}

} // namespace triax
