// What the description and the launches of attention agree on.
#pragma once
#include "kernels/attention.h"

namespace triax {

/// Operands of the forward pass, in the order of AttentionForward: 0 out, 1 lse (written), 2 qkv, 3 document_start.
/// Of the backward pass, in the order of AttentionBackward: 0 dqkv (written), 1 dout, 2 out, 3 lse, 4 qkv,
/// 5 document_start.
struct AttentionAttributes {
  int64_t batch, sequence, heads, kv_heads, head_width;
  float scale;
  int32_t window, documents;
  int32_t reserved = 0; ///< no padding: attributes are compared as bytes
};

/// Heads wider than this have no GPU implementation yet.
constexpr int64_t kAttentionMaxHeadWidth = 256;

/// Scratch of the backward pass on a GPU, in numbers of 4 bytes. The forward pass takes none.
struct AttentionScratch {
  static constexpr int kTile = 64;
  /// What a tile of queries brings, [kTile] each: the products of its rows of dout and of out, its lse in base 2, and
  /// the first key of each query (i32). What stands for queries beyond the sequence does no harm.
  static constexpr int kDelta = 0, kLse = kTile, kFirstKey = 2 * kTile, kNumbers = 3 * kTile;
  int64_t batch, heads, tiles; ///< of one sequence and head
  explicit AttentionScratch(const AttentionAttributes& a)
      : batch(a.batch), heads(a.heads), tiles((a.sequence + kTile - 1) / kTile) {}
  int64_t reach() const { return batch * heads * tiles * kNumbers; } ///< behind the numbers of [B, H, tiles]
  int64_t size() const { return reach() + batch * tiles; }           ///< reach: i32[B, tiles], a tile's first key
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
