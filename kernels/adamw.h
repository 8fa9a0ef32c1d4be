// AdamW (Loshchilov and Hutter 2019, algorithm 2) over a flat range of parameters, and what surrounds it.
#pragma once
#include "kernels/op.h"

namespace triax {

struct AdamW {
  float beta1, beta2, eps;
  float decay;             ///< decoupled weight decay, times the learning rate
  int64_t first;           ///< global number of the range's first parameter: keys the random bits
  bool stochastic;         ///< round bf16 weights stochastically (Philox, keyed by seed, step and parameter)
  Tensor weights;          ///< f32 or bf16 [n]
  Tensor master;           ///< f32[n]; absent where the weights are f32 themselves
  Tensor moment1, moment2; ///< f32[n]
  Tensor gradient;         ///< f32[n], multiplied by scalars[kGradientScale]
  Tensor state;            ///< StepState
  Tensor scalars;          ///< f32[kStepScalars]
};
/// Where kGradientScale is 0 because no token counted, nothing changes.
Op adamw(const AdamW& a);

/// scalars[kGradientNorm2] += sum of x[i]^2, x f32[n]: over fixed blocks, in a fixed order.
Op squared_norm(const Tensor& scalars, const Tensor& x);

/// From the sums of a step: the accumulated gradient is `capacity`^-1 times the sum over tokens; kGradientScale becomes
/// capacity / count, times min(1, clip / norm of the mean gradient) where clip > 0; 0 where no token counted.
/// kGradientNorm2 becomes the squared norm of the mean gradient.
Op finish_gradients(const Tensor& scalars, float capacity, float clip);

} // namespace triax
