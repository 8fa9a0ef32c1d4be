// Flash attention, forward: a block has 128 queries of one head and the tiles of 64 keys that they see.
#pragma once
#include "kernels/attention_flash.h"

namespace triax {
inline namespace SIMT_NS {
namespace flash {

/// The running softmax of a warp's queries (Milakov and Gimelshein 2018), in base 2. A lane sums the keys of its own
/// columns; the four lanes of a row meet at the end.
template <int M> struct Softmax {
  float largest[M][2], total[M][2]; ///< the largest score, not yet scaled
  SIMT_DEV Softmax() {
    SIMT_UNROLL
    for (int m = 0; m < M; ++m) {
      SIMT_UNROLL
      for (int half = 0; half < 2; ++half) {
        largest[m][half] = -INFINITY;
        total[m][half] = 0.0f;
      }
    }
  }
  /// Takes the scores into the largest ones; what was summed before counts `kept` times. False where that is 1 for all
  /// of the warp.
  template <int N> SIMT_DEV bool raise(const Sums<M, N>& s, float (&kept)[M][2], float scale) {
    bool moved = false;
    SIMT_UNROLL
    for (int m = 0; m < M; ++m) {
      SIMT_UNROLL
      for (int half = 0; half < 2; ++half) {
        float top = largest[m][half];
        SIMT_UNROLL
        for (int n = 0; n < N; ++n) top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(kAll, top, 1));
        top = fmaxf(top, __shfl_xor_sync(kAll, top, 2));
        kept[m][half] = exp2_approximate(largest[m][half] * scale - base(top, scale));
        moved = moved || top != largest[m][half];
        largest[m][half] = top;
        total[m][half] *= kept[m][half];
      }
    }
    return __any_sync(kAll, moved);
  }
  /// Scores become weights, relative to the largest.
  template <int N> SIMT_DEV void weigh(Sums<M, N>& s, float scale) {
    SIMT_UNROLL
    for (int m = 0; m < M; ++m) {
      SIMT_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float from = base(largest[m][half], scale);
        SIMT_UNROLL
        for (int n = 0; n < N; ++n) {
          SIMT_UNROLL
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[m][n][e] = exp2_approximate(s[m][n][e] * scale - from);
            total[m][half] += s[m][n][e];
          }
        }
      }
    }
  }
  SIMT_DEV static float base(float top, float scale) { // 0 where nothing was seen: differences stay numbers
    return top == -INFINITY ? 0.0f : top * scale;
  }
};

template <int D> struct ForwardTile {
  static constexpr int kTall = 2, kQueries = 16 * kTall * kWarps, kKeys = 64;
  static constexpr int kStage = 2 * kKeys * D; ///< keys and values
  static constexpr size_t kBytes =
      sizeof(bf16) * (kQueries * D + 2 * kStage) + sizeof(AttentionKeys) * kQueries + sizeof(Place);
};

/// c[row] *= factor[row].
template <int M, int N> SIMT_DEV void scale_rows(Sums<M, N>& c, const float (&factor)[M][2]) {
  SIMT_UNROLL
  for (int m = 0; m < M; ++m) {
    SIMT_UNROLL
    for (int n = 0; n < N; ++n) {
      SIMT_UNROLL
      for (int e = 0; e < 4; ++e) c[m][n][e] *= factor[m][e / 2];
    }
  }
}

/// Keeps the statistics of the warp's rows, as far as there are `count`; factor = what makes their sums means.
template <int M>
SIMT_DEV void finish(const Softmax<M>& softmax, float* lse, int count, float (&factor)[M][2], float scale, int lane) {
  SIMT_UNROLL
  for (int m = 0; m < M; ++m) {
    SIMT_UNROLL
    for (int half = 0; half < 2; ++half) {
      float total = softmax.total[m][half];
      total += __shfl_xor_sync(kAll, total, 1);
      total += __shfl_xor_sync(kAll, total, 2);
      factor[m][half] = total > 0.0f ? 1.0f / total : 0.0f;
      const int row = 16 * m + 8 * half + lane / 4;
      if (lane % 4 == 0 && row < count)
        lse[row] = total > 0.0f ? (softmax.largest[m][half] * scale + log2f(total)) * kLn2 : -INFINITY;
    }
  }
}

template <int D> __global__ void __launch_bounds__(kThreads, 2) attention_flash_forward_kernel(Arguments a) {
  using L = ForwardTile<D>;
  constexpr int M = L::kTall, N = L::kKeys / 8;
  const int lane = threadIdx.x % kLanes;
  bf16* const q = dynamic_shared<bf16>();
  bf16* const stages = q + L::kQueries * D;
  AttentionKeys* const keys = reinterpret_cast<AttentionKeys*>(stages + 2 * L::kStage);
  Place& place = *reinterpret_cast<Place*>(keys + L::kQueries);
  find_place(&place, a, (a.length + L::kQueries - 1) / L::kQueries, a.H);
  const Queries<L::kQueries> t(a, place, keys);
  int at = t.any.first / L::kKeys * L::kKeys;
  if (at <= t.any.last) {
    const bf16* const rows = sequence_of(a.q, a.q_pitch, a, place.batch);
    load_rows<D, L::kQueries>(q, rows + place.head * D, a.q_pitch, t.first, a.length);
    load_keys<D, L::kKeys>(stages, a, place, at);
    cp_async_commit();
  }
  Sums<M, D / 8> out;
  clear<M, D / 8>(out);
  Softmax<M> softmax;
  float factor[M][2];
  for (int stage = 0; at <= t.any.last; at += L::kKeys, stage ^= 1) {
    const bf16* const k = take_keys<D, L::kKeys>(stages, stage, a, place, at, t.any.last);
    const Seen& seen = place.seen[threadIdx.x / kLanes];
    if (seen.sees_none(at, L::kKeys)) continue;
    Sums<M, N> s;
    multiply_rows<D, M, N>(s, q + t.own * D, k, lane);
    if (!seen.sees_all(at, L::kKeys)) mask<M, N>(s, keys + t.own, at, lane);
    if (softmax.raise(s, factor, a.scale2)) scale_rows<M, D / 8>(out, factor);
    softmax.weigh(s, a.scale2);
    add_weighted<D, M, N>(out, s, k + L::kKeys * D, lane);
  }
  const int row = place.seen[threadIdx.x / kLanes].first, count = a.length - row;
  finish<M>(softmax, a.lse + (int64_t(place.batch) * a.H + place.head) * a.length + row, count, factor, a.scale2, lane);
  scale_rows<M, D / 8>(out, factor);
  bf16* const to = sequence_of(a.out, a.out_pitch, a, place.batch) + int64_t(row) * a.out_pitch + place.head * D;
  store_rows<D, M>(to, a.out_pitch, count, q + t.own * D, out, lane);
}

} // namespace flash
} // namespace SIMT_NS
} // namespace triax
