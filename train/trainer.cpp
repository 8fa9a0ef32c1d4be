#include "train/trainer.h"
#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"

namespace triax {
namespace {

constexpr int64_t kInputs = 4; ///< tokens, labels, document starts, order

Group data_group(Transport& transport, const Mesh& mesh) {
  return transport.group("dp", mesh.group({Axis::pod, Axis::dp, Axis::cp}));
}

int64_t micro_batches(const RunConfig& c, const Mesh& mesh) {
  return c.train.global_batch / (c.train.micro_batch * mesh.size(Axis::dp));
}

} // namespace

Trainer::Trainer(Device& device, Transport& transport, const Mesh& mesh, const RunConfig& config, Dtype dtype)
    : device_(device), config_(config), table_(config.model),
      data_axis_(device, transport, data_group(transport, mesh)), accumulation_(micro_batches(config, mesh)),
      rows_(config.train.micro_batch * config.data.sequence),
      weights_(device.persistent("weights", Purpose::weights, dtype, {table_.elements()})),
      master_(dtype == Dtype::f32
                  ? Tensor{}
                  : device.persistent("master weights", Purpose::master, Dtype::f32, {table_.elements()})),
      gradients_(device.persistent("gradients", Purpose::gradients, Dtype::f32, {table_.elements()})),
      moment1_(device.persistent("first moments", Purpose::optimizer, Dtype::f32, {table_.elements()})),
      moment2_(device.persistent("second moments", Purpose::optimizer, Dtype::f32, {table_.elements()})),
      host_state_(device.persistent("host step state", Purpose::inputs, Dtype::u8, {sizeof(StepState)}, Space::pinned)),
      host_inputs_(device.persistent("host inputs", Purpose::inputs, Dtype::i32, {accumulation_, kInputs, rows_},
                                     Space::pinned)),
      host_scalars_(device.persistent("host scalars", Purpose::inputs, Dtype::f32, {kStepScalars}, Space::pinned)),
      state_(device.persistent("step state", Purpose::inputs, Dtype::u8, {sizeof(StepState)})),
      inputs_(device.persistent("inputs", Purpose::inputs, Dtype::i32, {accumulation_, kInputs, rows_})),
      scalars_(device.persistent("scalars", Purpose::inputs, Dtype::f32, {kStepScalars})),
      decoder_(device, config.model, table_, config.data.sequence, weights_, gradients_),
      reducer_(device, data_axis_, gradients_, table_.decayed_elements(), config.comm.bucket_mb << 20) {
  decoder_.initialise();
}

void Trainer::initialise() {
  device_.begin("initialise");
  Stream compute = device_.compute();
  const Tensor& target = master_.empty() ? weights_ : master_;
  compute.run(fill(target, 0.0f));
  compute.run(fill(moment1_, 0.0f));
  compute.run(fill(moment2_, 0.0f));
  uint32_t number = 0;
  for (const Parameter& p : table_.rows()) {
    const Tensor t = target.slice(0, p.offset, p.size());
    compute.run(p.init_std > 0 ? normal_fill(t, p.init_std, uint64_t(config_.train.seed), number, 0)
                               : fill(t, p.init_constant));
    ++number;
  }
  if (!master_.empty()) compute.run(cast(weights_, master_));
  device_.end();
}

void Trainer::train() {
  device_.begin("train");
  Stream compute = device_.compute();
  data_axis_.begin();
  compute.run(copy(state_, host_state_));
  compute.run(copy(inputs_, host_inputs_));
  compute.run(fill(scalars_, 0.0f));
  compute.run(fill(gradients_, 0.0f));

  // Gradients are taken of the sum of losses over the batch's capacity; finish_gradients turns that into the mean over
  // counted tokens.
  const float capacity = float(config_.train.global_batch * config_.data.sequence);
  for (int64_t m = 0; m < accumulation_; ++m) {
    const bool last = m + 1 == accumulation_;
    if (last) reducer_.begin();
    decoder_.train(device_inputs(m), scalars_, 1 / capacity, [&](int64_t offset) {
      if (last) reducer_.finished_down_to(offset);
    });
  }
  reducer_.finish(scalars_.slice(0, kLossSum, 2)); // and kTokenCount
  compute.run(squared_norm(scalars_, gradients_));
  compute.run(finish_gradients(scalars_, capacity, float(config_.optimizer.clip)));
  update(0, table_.decayed_elements(), config_.optimizer.weight_decay);
  update(table_.decayed_elements(), table_.elements(), 0.0);
  compute.run(copy(host_scalars_, scalars_));
  device_.end();
}

void Trainer::update(int64_t first, int64_t end, double decay) {
  const auto range = [&](const Tensor& flat) { return flat.empty() ? flat : flat.slice(0, first, end - first); };
  const OptimizerConfig& o = config_.optimizer;
  device_.compute().run(adamw({.beta1 = float(o.beta1),
                               .beta2 = float(o.beta2),
                               .eps = float(o.eps),
                               .decay = float(decay),
                               .first = first,
                               .stochastic = o.stochastic_rounding,
                               .weights = range(weights_),
                               .master = range(master_),
                               .moment1 = range(moment1_),
                               .moment2 = range(moment2_),
                               .gradient = range(gradients_),
                               .state = state_,
                               .scalars = scalars_}));
}

void Trainer::evaluate() {
  device_.begin("evaluate");
  Stream compute = device_.compute();
  compute.run(copy(inputs_, host_inputs_));
  compute.run(fill(scalars_, 0.0f));
  decoder_.evaluate(device_inputs(0), scalars_);
  compute.run(copy(host_scalars_, scalars_));
  device_.end();
}

void Trainer::record_all() {
  initialise();
  train();
  evaluate();
}

Inputs Trainer::device_inputs(int64_t micro_batch) const {
  const Tensor all = inputs_.slice(0, micro_batch, 1).view({kInputs, rows_});
  const auto at = [&](int64_t i) { return all.slice(0, i, 1).view({rows_}); };
  return {config_.train.micro_batch, config_.data.sequence, at(0), at(1), at(2), at(3), config_.data.document_mask};
}

Trainer::HostInputs Trainer::inputs(int64_t micro_batch) const {
  int32_t* at = host_inputs_.data<int32_t>() + micro_batch * kInputs * rows_;
  return {at, at + rows_, at + 2 * rows_, at + 3 * rows_};
}

StepState& Trainer::state() const { return *host_state_.data<StepState>(); }

const float* Trainer::scalars() const {
  device_.synchronize();
  return host_scalars_.data<float>();
}

Dtype choose_dtype(DTypeChoice choice, const Target& target) {
  if (choice == DTypeChoice::f32) return Dtype::f32;
  if (choice == DTypeChoice::bf16 || target.kind == Target::Kind::cuda)
    return Dtype::bf16; // every target from sm_80 on has it
  return cpu_has_bf16() ? Dtype::bf16 : Dtype::f32;
}

Plan make_plan(const Target& target, int threads, Transport& transport, const Mesh& mesh, const RunConfig& config) {
  choose_kernels(config);
  const auto ghost = Device::ghost(target, threads);
  Trainer(*ghost, transport, mesh, config, choose_dtype(config.train.dtype, target)).record_all();
  return ghost->plan();
}

} // namespace triax
