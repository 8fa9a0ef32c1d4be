// Causal attention with grouped key/value heads and document boundaries.
#pragma once
#include "kernels/op.h"

namespace triax {

struct AttentionShape {
  int64_t batch, sequence; ///< B, T; N = B * T
  int64_t heads, kv_heads; ///< H, G; query head h uses key/value head h / (H / G)
  int64_t head_width;      ///< D
  float scale;             ///< of the scores, usually 1 / sqrt(D)
  int64_t window = 0;      ///< of how many positions, itself among them, a position sees the last; 0: of all
  bool documents = true;   ///< false: every document_start is 0
};

/// Position t of a sequence attends to the positions s with document_start[t] <= s <= t, and t - window < s where there
/// is a window; a row without any gives 0.
struct AttentionForward {
  AttentionShape shape;
  Tensor out;            ///< [N, H * D]
  Tensor lse;            ///< f32[B, H, T], log of the sum of exponentials, for the backward pass
  Tensor qkv;            ///< [N, (H + 2G) * D]: queries, keys, values side by side
  Tensor document_start; ///< i32[N]
};
Op attention_forward(const AttentionForward& f);

struct AttentionBackward {
  AttentionShape shape;
  Tensor dqkv;      ///< [N, (H + 2G) * D]
  Tensor dout, out; ///< [N, H * D]
  Tensor lse;       ///< f32[B, H, T]
  Tensor qkv;
  Tensor document_start;
};
Op attention_backward(const AttentionBackward& f);

} // namespace triax
