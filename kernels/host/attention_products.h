// The products of tiles of which attention on the host is made: see attention.cpp, whose units alone include this.
#pragma once
#include "kernels/attention_mask.h"
#include "kernels/attention_shape.h"
#include "kernels/host/pairs.h"
#include <limits.h>

namespace triax {
inline namespace SIMT_NS {
namespace {

constexpr int kQ = kAttentionQueries, kK = kAttentionKeys;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;
static_assert(kQ == kK && kAttentionPadding % kLanes == 0);

SIMT_FN int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
SIMT_FN int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/// Where a tile of queries stands, and which keys each of its queries sees.
struct Queries {
  int64_t first, count;
  int64_t first_key = INT_MAX, end = 0;        ///< of the keys that any of them sees
  int64_t first_end = INT_MAX, last_start = 0; ///< between these all see all
  bool own;                                    ///< are the keys at the same positions?
  alignas(64) int32_t start[kQ], last[kQ];     ///< keys; beyond the sequence nothing is seen
  Queries(const int32_t* document_start, int64_t at, const AttentionAttributes& shape, const AttentionContext& context)
      : first(at), count(least(kQ, shape.sequence - at)), own(context.is_own()) {
    for (int64_t q = 0; q < kQ; ++q) {
      const AttentionKeys keys = q < count
                                     ? attention_keys(context, document_start[at + q], int32_t(at + q), shape.window)
                                     : AttentionKeys{INT_MAX, -1};
      start[q] = keys.first;
      last[q] = keys.last;
      last_start = most(last_start, keys.first);
      first_end = least(first_end, keys.last + 1);
      if (keys.first > keys.last) continue;
      first_key = least(first_key, keys.first);
      end = most(end, keys.last + 1);
    }
  }
  int64_t begin() const { return first_key / kK * kK; }
  /// Is some pair of these keys and the tile's queries not to be seen?
  bool masks(int64_t key, int64_t keys) const { return key + keys > first_end || key < last_start; }
};

/// Which queries of the `index`th vector see the key.
SIMT_FN Integers sees(const Queries& t, int64_t index, int64_t key) {
  return (integers(t.start, index) <= int32_t(key)) & (integers(t.last, index) >= int32_t(key));
}

// On the diagonal, where a tile of keys lies at the same positions as the tile of queries, products leave out most of
// what the mask would clear: by steps of so many positions.
constexpr int64_t kStep = kAttentionPadding;
SIMT_FN int64_t step_of(const Queries& t, int64_t key) { return t.own && key == t.first ? kStep : kQ; }

/// s[keys, kQ] = x[keys, W] y[W, kQ].
void multiply_scores(float* s, const float* x, float* y, const Queries& t, int64_t key, int64_t keys, int64_t W) {
  const int64_t step = step_of(t, key);
  for (int64_t q = 0; q < kQ; q += step)
    multiply({s + q, kQ}, {x, W, 1}, {y + q, kQ}, least(keys, q + step), step, W, false);
}
/// s[keys, kQ] = factor x[keys, W] y[W, kQ], of pairs.
void multiply_scores(float* s, const int32_t* x, const int32_t* y, const Queries& t, int64_t key, int64_t keys,
                     int64_t W, float factor) {
  const int64_t step = step_of(t, key);
  for (int64_t q = 0; q < kQ; q += step)
    multiply_pairs({s + q, kQ}, {x, W / 2, 1}, {y + q, kQ}, least(keys, q + step), step, W / 2, factor, false);
}
/// sum[W, kQ] += x[keys, W]^T s[keys, kQ].
void sum_over_keys(float* sum, const float* x, float* s, const Queries& t, int64_t key, int64_t keys, int64_t W) {
  const int64_t step = step_of(t, key);
  for (int64_t q = 0; q < kQ; q += step)
    multiply({sum + q, kQ}, {x, 1, W}, {s + q, kQ}, W, step, least(keys, q + step), true);
}
/// The same of x[keys / 2, W] and s[keys / 2, kQ], in pairs of keys.
void sum_over_keys(float* sum, const int32_t* x, const int32_t* s, const Queries& t, int64_t key, int64_t keys,
                   int64_t W) {
  const int64_t step = step_of(t, key);
  for (int64_t q = 0; q < kQ; q += step)
    multiply_pairs({sum + q, kQ}, {x, 1, W}, {s + q, kQ}, W, step, (least(keys, q + step) + 1) / 2, 1.0f, true);
}
/// sum[keys, W] += s[keys, kQ] x[kQ, W].
void sum_over_queries(float* sum, const float* s, float* x, const Queries& t, int64_t key, int64_t keys, int64_t W) {
  const int64_t step = step_of(t, key);
  for (int64_t j = 0; j < keys; j += step)
    multiply({sum + j * W, W}, {s + j * kQ + j, kQ, 1}, {x + j * W, W}, least(step, keys - j), W, t.count - j, true);
}

/// The same of s[keys, kQ / 2], rows kQ apart, and x[kQ / 2, W], in pairs of queries.
void sum_over_queries(float* sum, const int32_t* s, const int32_t* x, const Queries& t, int64_t key, int64_t keys,
                      int64_t W) {
  const int64_t step = step_of(t, key);
  for (int64_t j = 0; j < keys; j += step)
    multiply_pairs({sum + j * W, W}, {s + j * kQ + j / 2, kQ, 1}, {x + j / 2 * W, W}, least(step, keys - j), W,
                   (t.count - j + 1) / 2, 1.0f, true);
}

/// Rows of s[keys, kQ] become pairs of keys, [keys / 2, kQ] words in their place.
void pair_keys(float* s, int64_t keys) {
  auto* const to = reinterpret_cast<Integers*>(s);
  for (int64_t j = 0; j < keys; j += 2)
    for (int64_t c = 0; c < kQ / kLanes; ++c) {
      const Vector first = vector(s + j * kQ, c), second = j + 1 < keys ? vector(s + (j + 1) * kQ, c) : Vector{};
      to[j / 2 * (kQ / kLanes) + c] = pairs_across(first, second);
    }
}
/// Pairs of queries of p[keys, kQ] take the first half of each row, those of ds the second.
void pair_queries(float* p, float* ds, int64_t keys) {
  constexpr int kHalf = kQ / kLanes / 2;
  for (int64_t j = 0; j < keys; ++j) {
    auto* const to = reinterpret_cast<Integers*>(p + j * kQ);
    for (int c = 0; c < kHalf; ++c) to[c] = pairs_along(vector(p + j * kQ, 2 * c), vector(p + j * kQ, 2 * c + 1));
    for (int c = 0; c < kHalf; ++c)
      to[kHalf + c] = pairs_along(vector(ds + j * kQ, 2 * c), vector(ds + j * kQ, 2 * c + 1));
  }
}

} // namespace
} // namespace SIMT_NS
} // namespace triax
