// Normalisation of rows, fused with the residual addition before it.
#pragma once
#include "kernels/op.h"

namespace triax {

enum class NormKind : int32_t { rms, layer };

/// sum[N, C] = x + residual; y[N, C] = normalise(sum) * weight (+ bias), over C.
/// rms:   rstd = 1 / sqrt(mean(sum^2) + eps), y = sum * rstd * weight     (Zhang and Sennrich 2019, eq. 4)
/// layer: y = (sum - mean) * rstd * weight + bias                         (Ba et al. 2016, eq. 3)
struct NormForward {
  NormKind kind = NormKind::rms;
  float eps = 1e-5f;
  Tensor y;            ///< [N, C], f32 or bf16
  Tensor sum;          ///< [N, C]; absent where there is no residual
  Tensor statistics;   ///< f32[N, 2]: mean (0 for rms) and rstd, for the backward pass
  Tensor x;            ///< [N, C]
  Tensor residual;     ///< [N, C]; may be absent
  Tensor weight, bias; ///< [C]; bias for layer only, may be absent
};
Op norm_forward(const NormForward& f);

/// dx[N, C] = gradient through the norm + dresidual; dweight and dbias accumulate in f32, in a fixed order.
struct NormBackward {
  NormKind kind = NormKind::rms;
  Tensor dx;             ///< [N, C]; may be the same tensor as dresidual
  Tensor dweight, dbias; ///< f32[C], accumulated; dbias absent where there is no bias
  Tensor dy;             ///< [N, C]
  Tensor dresidual;      ///< [N, C], the gradient that reaches `sum` by other ways; may be absent
  Tensor x;              ///< [N, C], what was normalised (`sum`)
  Tensor statistics;     ///< f32[N, 2]
  Tensor weight;         ///< [C]
};
Op norm_backward(const NormBackward& f);

} // namespace triax
