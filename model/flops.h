// What a model's mathematics costs, whatever the program does.
#pragma once
#include "model/config.h"

namespace triax {

/// Floating-point operations of forward and backward for one token in a sequence of T: 6 for every weight that
/// multiplies (the head counts, the embedding's look-up does not) and, for causal attention, 12 H D in each layer for
/// every key that a position sees: T / 2 of them on average (half of the full square; Kaplan et al. 2020, 2.1), in a
/// window of W < T only W - W^2 / (2 T).
double training_flops_per_token(const ModelConfig& config, int64_t sequence);

} // namespace triax
