#include "train/bench_training.h"
#include "kernels/matmul.h"
#include "model/flops.h"
#include "model/sizes.h"
#include "train/memory_table.h"
#include "train/wall.h"
#include <algorithm>
#include <cmath>
#include <numeric>

namespace triax {
namespace {

constexpr int64_t kLongestSequence = 4096, kShortestSequence = 512;

bool is_small(const std::string& model) { return model == "gpt2" || model == "llama"; }

struct Batch {
  int64_t sequence, micro; ///< micro 0: the configuration chooses
};

RunConfig bench_config(const TrainingOptions& o, const Batch& batch, int ranks) {
  std::vector<std::string> sets{"data.folder=unused", concat("data.sequence=", batch.sequence),
                                concat("train.global_batch=", o.batch), concat("train.dtype=", name_of(o.dtype))};
  if (batch.micro) sets.push_back(concat("train.micro_batch=", batch.micro));
  if (is_small(o.model))
    sets.insert(sets.end(), {"model.family=" + o.model, "model.width=512", "model.layers=8", "model.heads=8",
                             "model.vocabulary=50304", "model.context=512", "model.tied=true"});
  else
    sets.insert(sets.end(), {"model=" + o.model, "data.document_mask=false"});
  if (o.model == "llama") sets.insert(sets.end(), {"model.kv_heads=4", "model.mlp=1408"});
  sets.insert(sets.end(), o.sets.begin(), o.sets.end());
  return load_config("", sets, ranks);
}

/// From the best to the least that is tried.
std::vector<Batch> batches(const TrainingOptions& o, int ranks) {
  if (is_small(o.model)) return {{512, 0}};
  const int64_t share = o.batch / ranks, longest = std::min(kLongestSequence, named_size(o.model).context);
  std::vector<Batch> all;
  for (int64_t sequence = longest; sequence >= std::min(longest, kShortestSequence); sequence /= 2)
    for (int64_t micro = share; micro > 0; --micro)
      if (share % micro == 0) all.push_back({sequence, micro});
  return all;
}

struct Planned {
  RunConfig config;
  Plan plan;
};

/// The best batch that every rank's memory holds.
Planned plan_for(const TrainingOptions& o, const Device& device, Transport& transport, const Mesh& mesh) {
  const std::vector<Batch> all = batches(o, transport.size());
  const bool gpu = o.place.gpu();
  const int64_t have = device.available(Space::device) / (gpu ? 1 : transport.local_size());
  int64_t need = 0;
  for (const Batch& batch : all) {
    Planned planned{bench_config(o, batch, transport.size()), {}};
    planned.plan = make_plan(o.place.target, o.place.threads, mesh, planned.config);
    need = planned.plan.bytes[int(Space::device)];
    const std::vector<uint64_t> fits = transport.gather(need <= have);
    if (is_small(o.model) || *std::min_element(fits.begin(), fits.end())) return planned;
  }
  fail(concat("bench training: ", o.model, " does not fit: ", all.back().sequence, " tokens at a time need ",
              bytes_text(double(need)), ", and ", bytes_text(double(have)), " are available; name a smaller --model"));
}

/// Random tokens, the same ones every time.
void fill_inputs(const Trainer& trainer, const RunConfig& c, int share) {
  const int64_t rows = micro_batch(c) * c.data.sequence; // mesh.cp is 1
  uint64_t state = uint64_t(share) + 1;
  const auto token = [&] {
    return int32_t((state = state * 6364136223846793005u + 1442695040888963407u) >> 33) % int32_t(c.model.vocabulary);
  };
  for (int64_t m = 0; m < trainer.accumulation(); ++m) {
    const auto in = trainer.inputs(m);
    std::generate_n(in.tokens, rows, token);
    std::generate_n(in.labels, rows, token);
    std::fill_n(in.document_start, rows, 0);
    std::iota(in.order, in.order + rows, 0);
    std::stable_sort(in.order, in.order + rows, [&](int32_t a, int32_t b) { return in.tokens[a] < in.tokens[b]; });
  }
}

/// The steps: their seconds, and the matrix rates seen between them, which on a GPU nothing is left to measure.
struct Steps {
  std::vector<double> seconds, rates;
  double loss = 0;
};

Steps run_steps(Trainer& trainer, Transport& transport, const TrainingOptions& o) {
  Steps s;
  for (int step = 0; step <= o.steps; ++step) {
    transport.barrier();
    const auto from = Wall::now();
    trainer.state().step = step + 1;
    trainer.train();
    const float* scalars = trainer.scalars();
    transport.barrier();
    s.loss = double(scalars[kLossSum]) / double(scalars[kTokenCount]);
    if (step == 0) continue; // warms caches and libraries up
    s.seconds.push_back(seconds_since(from));
    if (!o.place.gpu()) s.rates.push_back(transport.sum(measure_matrix_rate(o.dtype, o.place.threads)));
  }
  return s;
}

/// Of all ranks together.
double gpu_rate(Transport& transport, const TrainingOptions& o) {
  transport.barrier();
  return o.place.gpu() ? transport.sum(matrix_rate_of(o.place, o.dtype, o.size)) : 0;
}

} // namespace

std::vector<std::string> usual_models(const BenchPlace& place) {
  if (place.gpu()) return {"qwen2.5-1.5b", "llama2-7b"};
  return {"gpt2", "llama"};
}

TrainingRow bench_training(Transport& transport, const TrainingOptions& o) {
  const double rate_before = gpu_rate(transport, o);
  const auto began = Wall::now();
  const int ranks = transport.size();
  TrainingRow row{};
  const Mesh mesh(mesh_shape(bench_config(o, batches(o, ranks).front(), ranks)), transport.rank(), ranks,
                  transport.hosts());
  auto device = Device::open(o.place.target, o.place.threads);
  Planned planned = plan_for(o, *device, transport, mesh);
  const RunConfig& config = planned.config;
  transport.set_timeout(config.comm.timeout);
  transport.choose(config.comm.transport, o.place.target);
  row.available_bytes = double(device->available(Space::device));
  device->follow(planned.plan);
  Steps steps;
  {
    Trainer trainer(*device, transport, mesh, config, o.dtype);
    trainer.initialise();
    fill_inputs(trainer, config, mesh.index(kDataAxes));
    trainer.state().learning_rate = 1e-4f;
    device->synchronize();
    transport.barrier();
    row.start_seconds = seconds_since(began);
    steps = run_steps(trainer, transport, o);
    row.parameters = trainer.table().count();
  }
  DEMAND(std::isfinite(steps.loss), "bench training: the loss of ", o.model, " is ", steps.loss, " after ", o.steps + 1,
         " steps");
  if (o.place.gpu()) row.taken_bytes = row.available_bytes - double(device->available(Space::device));
  device.reset();
  row.model = o.model;
  row.target = o.place.target.name;
  row.dtype = o.dtype;
  row.repro = config.train.repro;
  row.ranks = ranks;
  row.threads = o.place.threads;
  row.batch = o.batch;
  row.micro_batch = config.train.micro_batch;
  row.sequence = config.data.sequence;
  row.loss = steps.loss;
  row.planned_bytes = double(planned.plan.bytes[int(Space::device)]);
  row.flops_per_token = training_flops_per_token(config.model, config.data.sequence);
  row.step_seconds = median(steps.seconds);
  row.matrix_rate = o.place.gpu() ? std::max(rate_before, gpu_rate(transport, o)) : median(steps.rates);
  row.tokens_per_second = double(row.batch * row.sequence) / row.step_seconds;
  row.mfu = row.tokens_per_second * row.flops_per_token / row.matrix_rate;
  return row;
}

} // namespace triax
