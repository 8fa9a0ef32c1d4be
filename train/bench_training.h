// How fast a whole training step is, against the machine's matrix rate measured in the same run.
#pragma once
#include "train/trainer.h"
#include <string>
#include <vector>

namespace triax {

struct TrainingRow {
  std::string model;
  Dtype dtype;
  int ranks, threads;      ///< threads of one rank
  int64_t batch, sequence; ///< over all ranks
  double step_seconds;     ///< median
  double tokens_per_second;
  double flops_per_token;
  double matrix_rate;   ///< FLOP/s of all ranks together, median, measured between the steps
  double mfu;           ///< model flops over that rate
  double start_seconds; ///< from nothing to the beginning of the first step: plan, arena, weights
};

/// `model`: "llama" or "gpt2", 512 wide, 8 layers, T = 512, vocabulary 50,304. Collective over all ranks.
TrainingRow bench_training(Transport& transport, const std::string& model, Dtype dtype, int threads, int64_t batch,
                           int steps);

} // namespace triax
