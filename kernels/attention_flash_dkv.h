// Flash attention, backward: the gradients of keys and values.
#pragma once
#include "kernels/attention_flash_dq.h"

namespace triax {
inline namespace SIMT_NS {
namespace flash {

template <int D> struct KeysTile {
  static constexpr int kTall = D == 64 ? 2 : 1, kKeys = 16 * kTall * kWarps, kQueries = 64, kStep = 32;
  /// The left operands in registers: all that are left for 128 queries' sums. From sm_100 on ptxas would spill some.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  static constexpr bool kKeep = kTall == 1 && D < 128;
#else
  static constexpr bool kKeep = kTall == 1;
#endif
  static constexpr bool kKeepValues = kKeep && D < 128;       ///< those of values too
  static constexpr int kStage = 2 * kQueries * D;             ///< queries and their gradients of out
  static constexpr int kNumbers = AttentionScratch::kNumbers; ///< of a stage
  static constexpr size_t kBytes =
      sizeof(bf16) * (2 * kKeys * D + 2 * kStage) + sizeof(float) * 2 * kNumbers + sizeof(Place);
  static_assert(kQueries == AttentionScratch::kTile);
};

/// Scores of queries, in columns, that do not see a key become -infinity: first of those that come too late for it,
/// then of those too early, for both bounds at once would take more registers than there are.
template <int M, int N> SIMT_DEV void mask_queries(Sums<M, N>& s, const float* numbers, int key, int lane) {
  const auto each = [&](const int* bound, const auto& sees) {
    SIMT_UNROLL
    for (int n = 0; n < N; ++n) {
      SIMT_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int at = bound[8 * n + lane % 4 * 2 + e] - key - lane / 4;
        SIMT_UNROLL
        for (int m = 0; m < M; ++m) {
          SIMT_UNROLL
          for (int half = 0; half < 2; ++half) {
            float& x = s[m][n][2 * half + e];
            x = sees(16 * m + 8 * half, at) ? x : -INFINITY;
          }
        }
      }
    }
  };
  const int* const keys = reinterpret_cast<const int*>(numbers);
  each(keys + AttentionScratch::kFirstKey, [](int row, int low) { return row >= low; });
  __syncwarp();
  each(keys + AttentionScratch::kLastKey, [](int row, int high) { return row <= high; });
}

/// The same of queries in columns, whose numbers are given.
template <int M, int N> SIMT_DEV void differentiate_columns(Sums<M, N>& s, Sums<M, N>& dp, float scale,
                                                            const float* lse, const float* delta, int lane) {
  SIMT_UNROLL
  for (int n = 0; n < N; ++n) {
    const float2 l = *reinterpret_cast<const float2*>(lse + 8 * n + lane % 4 * 2);
    const float2 d = *reinterpret_cast<const float2*>(delta + 8 * n + lane % 4 * 2);
    SIMT_UNROLL
    for (int m = 0; m < M; ++m) {
      SIMT_UNROLL
      for (int e = 0; e < 4; ++e) differentiate(s[m][n][e], dp[m][n][e], scale, e % 2 ? l.y : l.x, e % 2 ? d.y : d.x);
    }
  }
}

/// place->begin and ->end = those of the tiles of queries that see one of the keys from `first` to `last`; both 0 where
/// none does. Waits for them.
SIMT_DEV void find_tiles(Place* place, const AttentionKeys* reach, int tiles, int first, int last) {
  if (threadIdx.x < kLanes) {
    int begin = INT_MAX, end = 0;
    for (int i = threadIdx.x; i < tiles; i += kLanes) {
      if (reach[i].first > last || reach[i].last < first) continue;
      begin = least(begin, i);
      end = i + 1;
    }
    end = -warp_least(-end);
    begin = least(warp_least(begin), end);
    if (threadIdx.x == 0) {
      place->begin = begin;
      place->end = end;
    }
  }
  __syncthreads();
}

/// A warp's keys and values, and their gradients so far.
template <int D> struct KeySums {
  using L = KeysTile<D>;
  static constexpr int M = L::kTall, N = L::kStep / 8;
  const bf16 *k, *v;         ///< the warp's rows
  Left<D, M> left_k, left_v; ///< the same in registers, if L::kKeep and kKeepValues
  Sums<M, D / 8> dk, dv;
  SIMT_DEV KeySums(const bf16* keys, const bf16* values) : k(keys), v(values) {
    clear<M, D / 8>(dk);
    clear<M, D / 8>(dv);
  }
  /// Once keys and values are there.
  SIMT_DEV void load(int lane) {
    if constexpr (L::kKeep) load_left<D, M>(left_k, k, lane);
    if constexpr (L::kKeepValues) load_left<D, M>(left_v, v, lane);
  }
  /// Adds what kStep queries give to the keys from `key`.
  SIMT_DEV void add(const bf16* q, const bf16* dout, const float* numbers, int key, float scale, int lane) {
    const int last = key + 16 * M - 1;
    const int* const bounds = reinterpret_cast<const int*>(numbers) + lane; // of a query for each lane
    const int low = bounds[AttentionScratch::kFirstKey], high = bounds[AttentionScratch::kLastKey];
    if (!__any_sync(kAll, low <= last && high >= key)) return;
    const bool masked = __any_sync(kAll, low > key || high < last);
    Sums<M, N> p, ds;
    if constexpr (L::kKeep)
      multiply_rows<D, M, N>(p, left_k, q, lane);
    else
      multiply_rows<D, M, N>(p, k, q, lane);
    if (masked) mask_queries<M, N>(p, numbers, key, lane);
    if constexpr (L::kKeepValues)
      multiply_rows<D, M, N>(ds, left_v, dout, lane);
    else
      multiply_rows<D, M, N>(ds, v, dout, lane);
    differentiate_columns<M, N>(p, ds, scale, numbers + AttentionScratch::kLse, numbers + AttentionScratch::kDelta,
                                lane);
    add_weighted<D, M, N>(dv, p, dout, lane);
    add_weighted<D, M, N>(dk, ds, q, lane);
  }
};

/// dk and dv of a tile of keys of one key/value head, over the query heads of its group and the queries behind it, in
/// this order: dv = p dout, dk = scale ds q.
template <int D> __global__ void __launch_bounds__(kThreads, 2) attention_flash_dkv_kernel(Arguments a) {
  using L = KeysTile<D>;
  constexpr int M = L::kTall;
  const int lane = threadIdx.x % kLanes, own = threadIdx.x / kLanes * 16 * M;
  bf16* const k = dynamic_shared<bf16>();
  bf16* const v = k + L::kKeys * D;
  bf16* const stages = v + L::kKeys * D;
  float* const numbers = reinterpret_cast<float*>(stages + 2 * L::kStage);
  const int key_tiles = (a.length + L::kKeys - 1) / L::kKeys, tiles = (a.length + L::kQueries - 1) / L::kQueries;
  Place& place = *reinterpret_cast<Place*>(numbers + 2 * L::kNumbers);
  find_place(&place, a, key_tiles, a.G);
  const int first = place.tile * L::kKeys, last = least(first + L::kKeys, a.length) - 1;
  const AttentionKeys* const reach = reinterpret_cast<const AttentionKeys*>(a.reach) + int64_t(place.batch) * tiles;
  find_tiles(&place, reach, tiles, first, last);

  // The n-th of the tiles of all heads of the group. What can be computed again is not kept in registers.
  const auto load_queries = [&](int n, int stage) {
    const int count = place.end - place.begin, tile = place.begin + n % count, h = place.head * a.group + n / count;
    bf16* const q = stages + stage * L::kStage;
    const int at = tile * L::kQueries;
    const bf16* const rows = sequence_of(a.q, a.q_pitch, a, place.batch);
    const bf16* const gradients = sequence_of(a.dout, a.dout_pitch, a, place.batch);
    load_rows<D, L::kQueries>(q, rows + h * D, a.q_pitch, at, a.length);
    load_rows<D, L::kQueries>(q + L::kQueries * D, gradients + h * D, a.dout_pitch, at, a.length);
    if (threadIdx.x < L::kNumbers / 4) {
      const int64_t head = int64_t(place.batch) * a.H + h;
      const float* const from = a.numbers + (head * tiles + tile) * L::kNumbers;
      cp_async_16(numbers + stage * L::kNumbers + int(threadIdx.x) * 4, from + int(threadIdx.x) * 4, true);
    }
  };

  KeySums<D> x(k + own * D, v + own * D);
  const auto all = [&] { return a.group * (place.end - place.begin); };
  if (all() > 0) {
    load_keys<D, L::kKeys>(k, a, place, first);
    load_queries(0, 0);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    x.load(lane);
  }
  for (int n = 0; n < all(); ++n) {
    const int stage = n % 2;
    cp_async_wait<0>();
    __syncthreads(); // these queries are there, and nobody reads the ones before
    if (n + 1 < all()) load_queries(n + 1, stage ^ 1);
    cp_async_commit();
    for (int i = 0; i < L::kQueries; i += L::kStep) {
      const bf16* const q = stages + stage * L::kStage + i * D;
      const int own_first = place.tile * L::kKeys + own;
      x.add(q, q + L::kQueries * D, numbers + stage * L::kNumbers + i, own_first, a.scale2, lane);
    }
  }
  scale_all<M, D / 8>(x.dk, a.scale);
  const int row = place.tile * L::kKeys + own;
  bf16* const to = sequence_of(a.dkv, a.dkv_pitch, a, place.batch) + int64_t(row) * a.dkv_pitch + place.head * D;
  store_rows<D, M>(to, a.dkv_pitch, a.length - row, k + own * D, x.dk, lane);
  store_rows<D, M>(to + a.G * D, a.dkv_pitch, a.length - row, v + own * D, x.dv, lane);
}

} // namespace flash
} // namespace SIMT_NS
} // namespace triax
