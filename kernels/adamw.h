// AdamW (Loshchilov and Hutter 2019, algorithm 2) over a flat range of parameters, and what surrounds it.
#pragma once
#include "kernels/op.h"

namespace triax {

struct AdamW {
  float beta1, beta2, eps;
  float decay;             ///< decoupled weight decay, times the learning rate
  int64_t first;           ///< number of the whole range's first parameter: keys the random bits
  int64_t decay_to;        ///< numbers from here on do not decay
  int64_t shared_from;     ///< numbers from here on have the same bits on all ranks of a tensor-parallel group
  bool stochastic;         ///< round bf16 weights stochastically (Philox, keyed by seed, step and parameter)
  Tensor weights;          ///< f32 or bf16 [n]: piece shard_rank, of n parameters each, of the whole range
  Tensor master;           ///< f32[n]; absent where the weights are f32 themselves
  Tensor moment1, moment2; ///< f32[n]
  Tensor gradient;         ///< f32[n], multiplied by scalars[kGradientScale]
  Tensor state;            ///< StepState
  Tensor scalars;          ///< f32[kStepScalars]
};
/// Where kGradientScale is 0 because no token counted, nothing changes.
Op adamw(const AdamW& a);

/// From number `copied_from` of a range on, `copies` ranks hold the same, from `whole_from` on `whole_by` ranks.
struct SharedRange {
  int64_t copied_from, copies, whole_from, whole_by;
};

/// blocks[b] = the sum of x[i]^2 over the b-th kNormBlock of x f32[n], which is piece shard_rank of a range; what
/// several ranks hold counts as a share.
Op squared_norm(const Tensor& blocks, const Tensor& x, const Tensor& state, const SharedRange& shared);
/// total f32[1] = the sum of the first `count` of blocks f32[pieces, n], row by row, in a fixed order.
Op norm_total(const Tensor& total, const Tensor& blocks, int64_t count);
constexpr int64_t kNormBlock =
    4096; ///< fixed, so that the sum depends neither on the machine nor on where shards are cut

/// From the sums of a step: the accumulated gradient is `capacity`^-1 times the sum over tokens; kGradientScale becomes
/// capacity / count, times min(1, clip / norm of the mean gradient) where clip > 0; 0 where no token counted.
/// kGradientNorm2 becomes the squared norm of the mean gradient.
Op finish_gradients(const Tensor& scalars, float capacity, float clip);

} // namespace triax
