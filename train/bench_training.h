// How fast a whole training step is, against the machine's matrix rate measured in the same run.
#pragma once
#include "train/bench_case.h"
#include "train/trainer.h"
#include <string>
#include <vector>

namespace triax {

struct TrainingRow {
  std::string model, target;
  Dtype dtype;
  bool repro;
  int ranks, threads;                   ///< threads of one rank
  int64_t batch, micro_batch, sequence; ///< the batch over all ranks
  int64_t parameters;
  double step_seconds; ///< median
  double tokens_per_second;
  double flops_per_token;
  double matrix_rate;     ///< FLOP/s of all ranks together; on a CPU the median of what is measured between the steps,
                          ///< on a GPU the best before and after the steps
  double mfu;             ///< model flops over that rate
  double start_seconds;   ///< from nothing to the beginning of the first step: plan, arena, weights
  double loss;            ///< of the last step, in nats
  double planned_bytes;   ///< the arena's on the device
  double available_bytes; ///< on the device before the arena was taken
  double taken_bytes;     ///< what the steps and the arena left less of; of a GPU alone
};

struct TrainingOptions {
  std::string model; ///< "llama" or "gpt2": 512 wide, 8 layers, T = 512, vocabulary 50,304; else a named size
  Dtype dtype = Dtype::f32;
  BenchPlace place;
  int64_t batch = 8;                 ///< sequences in a step, over all ranks
  int steps = 3;                     ///< timed; one more comes before
  std::vector<std::string> sets;     ///< further settings, "a.b=c"
  BenchSize size = BenchSize::usual; ///< of the products that a GPU's matrix rate is measured by
};

/// What is benched on a place unless something else is asked for.
std::vector<std::string> usual_models(const BenchPlace& place);

/// Random tokens. A named size takes sequences of 4096 tokens, or fewer where its context is shorter, and the largest
/// micro-batch that the device's memory holds by the plan; where not even one sequence fits, shorter ones, down to 512.
/// Throws where those do not fit either, or the loss is no number. Collective over all ranks.
TrainingRow bench_training(Transport& transport, const TrainingOptions& options);

} // namespace triax
