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

/// Where the positions of a sequence are shared by the ranks of a context group (ring attention, Liu et al. 2023, arXiv
/// 2310.01889): of 2 R chunks, rank r of R has the r-th and the r-th from the end, in this order, so that a causal mask
/// leaves all ranks as much to do. B sequences of T rows each are what this rank has of them; document_start and the
/// window speak of positions in the whole sequence.
struct AttentionRing {
  int64_t ranks = 1;
  int64_t step = 0; ///< keys and values are those of the rank `step` places before
  Tensor state;     ///< holds the StepState, which knows this rank's place
};

/// What the keys and values of one rank give for this rank's queries; parts are joined by `attention_join`.
struct AttentionPartForward {
  AttentionShape shape;
  AttentionRing ring;
  Tensor out, lse, q; ///< [N, H * D], f32[B, H, T], [N, H * D]
  Tensor kv;          ///< [N, 2G * D]: keys and values side by side
  Tensor document_start;
};
Op attention_forward(const AttentionPartForward& f);

/// Gradients from the same part, with the output and lse of the whole.
struct AttentionPartBackward {
  AttentionShape shape;
  AttentionRing ring;
  Tensor dq, dkv, dout, out, lse, q, kv, document_start;
};
Op attention_backward(const AttentionPartBackward& f);

/// A part of attention, or parts joined: rows that saw nothing are 0, with lse -infinity.
struct AttentionPart {
  Tensor out; ///< [N, H * D], dense
  Tensor lse; ///< f32[B, H, T]
};
/// to = what the keys of a and those of b give together; to.out may be a.out.
Op attention_join(const AttentionPart& to, const AttentionPart& a, const AttentionPart& b);

} // namespace triax
