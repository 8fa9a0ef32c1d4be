// RMSNorm of each head of the queries and keys in a fused projection, with one weight for all query heads and one for
// all key heads (Dehghani et al. 2023, section 2; as in Qwen3, Yang et al. 2025, section 2).
#pragma once
#include "kernels/op.h"

namespace triax {

/// In place, for each head h of x[N, heads * D]: rstd = 1 / sqrt(mean(x_h^2) + eps), x_h = x_h * rstd * weight, where
/// the first `queries` heads take weight[0, D) and the others weight[D, 2D).
struct HeadNormForward {
  int64_t queries = 0; ///< H, at most `heads`
  float eps = 1e-6f;
  Tensor x;      ///< [N, heads * D], f32 or bf16; rows may be strided
  Tensor before; ///< [N, heads * D]: x as it was, for the backward pass
  Tensor weight; ///< [2D]
};
Op head_norm_forward(const HeadNormForward& f);

/// In place: dx holds the gradient of what the norm gave and, afterwards, of what it was given. dweight accumulates in
/// f32, in a fixed order.
struct HeadNormBackward {
  int64_t queries = 0;
  float eps = 1e-6f; ///< as in the forward pass
  Tensor dx;         ///< [N, heads * D]; rows may be strided
  Tensor dweight;    ///< f32[2D], accumulated
  Tensor before;     ///< [N, heads * D]
  Tensor weight;     ///< [2D]
};
Op head_norm_backward(const HeadNormBackward& f);

} // namespace triax
