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
  int32_t reserved = 0; ///< no padding: attributes are compared as bytes
};

/// Heads wider than this have no GPU implementation yet.
constexpr int64_t kAttentionMaxHeadWidth = 256;

/// Scratch of the backward pass on a GPU: f32[B, H, T], the products of each row of dout with its row of out. The
/// forward pass takes none there.
TRIAX_INLINE int64_t attention_cuda_scratch(const AttentionAttributes& a) {
  return a.batch * a.heads * a.sequence * bytes_of(Dtype::f32);
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
