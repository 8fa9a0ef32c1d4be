// What the description and the launches of attention agree on.
#pragma once
#include "kernels/attention.h"

namespace triax {

/// Operands of the forward pass: 0 out, 1 lse (written), 2 q, 3 kv, 4 document_start, 5 state.
/// Of the backward pass: 0 dq, 1 dkv (written), 2 dout, 3 out, 4 lse, 5 q, 6 kv, 7 document_start, 8 state.
/// The state is there where several ranks share a sequence.
struct AttentionAttributes {
  int64_t batch, sequence, heads, kv_heads, head_width;
  float scale;
  int32_t window, documents;
  int32_t ring_ranks, ring_step;
  int32_t reserved = 0; ///< no padding: attributes are compared as bytes
};

/// Heads wider than this have no GPU implementation yet.
constexpr int64_t kAttentionMaxHeadWidth = 256;

/// Scratch of the backward pass on a GPU, in numbers of 4 bytes. The forward pass takes none.
struct AttentionScratch {
  static constexpr int kTile = 64;
  /// What a tile of queries brings, [kTile] each: the products of its rows of dout and of out, its lse in base 2, and
  /// the first and the last key of each query (i32). What stands for queries beyond the sequence does no harm.
  static constexpr int kDelta = 0, kLse = kTile, kFirstKey = 2 * kTile, kLastKey = 3 * kTile, kNumbers = 4 * kTile;
  int64_t batch, heads, tiles; ///< of one sequence and head
  explicit AttentionScratch(const AttentionAttributes& a)
      : batch(a.batch), heads(a.heads), tiles((a.sequence + kTile - 1) / kTile) {}
  int64_t reach() const { return batch * heads * tiles * kNumbers; } ///< behind the numbers of [B, H, tiles]
  int64_t size() const { return reach() + 2 * batch * tiles; } ///< reach: i32[B, tiles, 2], a tile's first, last key
};

/// Does the GPU's flash attention take these? `rows` are the operands that it reads and writes by 16 bytes.
template <class... Rows> TRIAX_INLINE bool flash_attention_takes(const AttentionAttributes& a, const Rows&... rows) {
  const auto whole = [](const Tensor& t) {
    return t.dtype == Dtype::bf16 && t.address % 16 == 0 && t.stride[0] * bytes_of(t.dtype) % 16 == 0 &&
           t.stride[0] <= INT32_MAX;
  };
  const bool width = a.head_width == 64 || a.head_width == 96 || a.head_width == 128;
  return width && a.scale > 0.0f && a.batch * a.sequence <= INT32_MAX && (whole(rows) && ...);
}

/// The host works on tiles of queries by keys, in f32, with heads padded to whole vectors.
constexpr int kAttentionQueries = 64, kAttentionKeys = 64, kAttentionPadding = 16;
TRIAX_INLINE int64_t attention_padded_width(const AttentionAttributes& a) {
  return (a.head_width + kAttentionPadding - 1) / kAttentionPadding * kAttentionPadding;
}
/// Scratch of one thread of the host's team, in floats: a sequence's keys and values (and their gradients), and tiles.
TRIAX_INLINE int64_t attention_host_floats(const AttentionAttributes& a, bool backward) {
  const int64_t width = attention_padded_width(a), sequences = backward ? 4 : 2, heads = backward ? 5 : 2;
  return sequences * a.sequence * width + heads * kAttentionQueries * width +
         (backward ? 2 : 1) * kAttentionQueries * kAttentionKeys;
}

} // namespace triax
