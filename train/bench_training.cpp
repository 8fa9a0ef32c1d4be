#include "train/bench_training.h"
#include "kernels/matmul.h"
#include "model/flops.h"
#include <algorithm>
#include <chrono>
#include <numeric>

namespace triax {
namespace {

using Wall = std::chrono::steady_clock;

double seconds_since(Wall::time_point then) { return std::chrono::duration<double>(Wall::now() - then).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

RunConfig bench_config(const std::string& model, Dtype dtype, int64_t batch, int ranks) {
  std::vector<std::string> sets{"data.folder=unused",
                                "data.sequence=512",
                                concat("train.global_batch=", batch),
                                concat("train.dtype=", name_of(dtype)),
                                "model.family=" + model,
                                "model.width=512",
                                "model.layers=8",
                                "model.heads=8",
                                "model.vocabulary=50304",
                                "model.context=512",
                                "model.tied=true"};
  if (model == "llama") sets.insert(sets.end(), {"model.kv_heads=4", "model.mlp=1408"});
  return load_config("", sets, ranks);
}

/// Random tokens, the same ones every time.
void fill_inputs(const Trainer& trainer, const RunConfig& c, int rank) {
  const int64_t rows = c.train.micro_batch * c.data.sequence;
  uint64_t state = uint64_t(rank) + 1;
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

} // namespace

TrainingRow bench_training(Transport& transport, const std::string& model, Dtype dtype, int threads, int64_t batch,
                           int steps) {
  transport.barrier();
  const auto began = Wall::now();
  const int ranks = transport.size();
  const RunConfig config = bench_config(model, dtype, batch, ranks);
  const Mesh mesh({1, 1, ranks, 1, 1}, transport.rank(), ranks);
  const Target target;
  const Plan plan = make_plan(target, threads, transport, mesh, config);
  const auto device = Device::open(target, threads);
  device->follow(plan);
  Trainer trainer(*device, transport, mesh, config, dtype);
  trainer.initialise();
  fill_inputs(trainer, config, transport.rank());
  StepState& state = trainer.state();
  state.learning_rate = 1e-4f;

  TrainingRow row{model,   dtype, ranks,
                  threads, batch, config.data.sequence,
                  0,       0,     training_flops_per_token(config.model, config.data.sequence),
                  0,       0,     0};
  transport.barrier();
  row.start_seconds = seconds_since(began);
  std::vector<double> seconds, rates;
  for (int step = 0; step <= steps; ++step) {
    transport.barrier();
    const auto from = Wall::now();
    state.step = step + 1;
    trainer.train();
    trainer.scalars();
    transport.barrier();
    if (step == 0) continue; // warms caches and libraries up
    seconds.push_back(seconds_since(from));
    rates.push_back(transport.sum(measure_matrix_rate(dtype, threads)));
  }
  row.step_seconds = median(seconds);
  row.matrix_rate = median(rates);
  row.tokens_per_second = double(batch * row.sequence) / row.step_seconds;
  row.mfu = row.tokens_per_second * row.flops_per_token / row.matrix_rate;
  return row;
}

} // namespace triax
