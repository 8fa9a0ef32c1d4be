// Flash attention, backward (Dao et al. 2022, arXiv 2205.14135, algorithm 4), in three kernels: the products of dout
// and out, the gradients of keys and values, that of queries. Scores are computed twice so that every gradient has one
// owner: seven products for the five of the mathematics, and no sum depends on the order of blocks.
#pragma once
#include "kernels/attention_flash.h"

namespace triax {
inline namespace SIMT_NS {
namespace flash {

/// The numbers of a tile of queries of a head, and once for all heads the tile's reach.
template <int D> __global__ void __launch_bounds__(kThreads) attention_flash_delta_kernel(Arguments a) {
  constexpr int kTile = AttentionScratch::kTile, kTogether = D == 64 ? 8 : 16; // lanes of a row
  static_assert(D / 8 <= kTogether && kTile == 2 * kLanes);
  const int first = blockIdx.x * kTile, h = blockIdx.y, b = blockIdx.z;
  const int lane = threadIdx.x % kLanes, chunk = threadIdx.x % kTogether;
  const int64_t sequence = int64_t(b) * a.length, head = int64_t(b) * a.H + h;
  float* const numbers = a.numbers + (head * gridDim.x + blockIdx.x) * AttentionScratch::kNumbers;
  SIMT_UNROLL
  for (int n = 0; n < kTile * kTogether / kThreads; ++n) {
    const int row = (n * kThreads + int(threadIdx.x)) / kTogether, t = first + row;
    float sum = 0.0f;
    if (t < a.length && chunk < D / 8) {
      float x[8], y[8];
      load<8>(x, a.dout + (sequence + t) * a.dout_pitch + h * D + chunk * 8);
      load<8>(y, a.out + (sequence + t) * a.out_pitch + h * D + chunk * 8);
      SIMT_UNROLL
      for (int i = 0; i < 8; ++i) sum += x[i] * y[i];
    }
    SIMT_UNROLL
    for (int o = kTogether / 2; o > 0; o >>= 1) sum += __shfl_xor_sync(kAll, sum, o);
    if (chunk == 0) numbers[AttentionScratch::kDelta + row] = sum;
  }
  AttentionKeys any{INT_MAX, -1};
  SIMT_UNROLL
  for (int row = lane; row < kTile; row += kLanes) { // by every warp, for the sake of `any`
    const int t = first + row;
    const float lse = t < a.length ? a.lse[head * a.length + t] : -INFINITY;
    const AttentionKeys seen = keys_of(a, a.start + sequence, t);
    if (seen.first <= seen.last) any = {least(any.first, seen.first), -least(-any.last, -seen.last)};
    if (threadIdx.x >= kLanes) continue;
    numbers[AttentionScratch::kLse + row] = lse == -INFINITY ? 0.0f : lse * kLog2E; // it sees nothing
    reinterpret_cast<int*>(numbers)[AttentionScratch::kFirstKey + row] = seen.first;
    reinterpret_cast<int*>(numbers)[AttentionScratch::kLastKey + row] = seen.last;
  }
  any = keys_of_warp(any);
  if (h == 0 && threadIdx.x == 0) reinterpret_cast<AttentionKeys*>(a.reach)[int64_t(b) * gridDim.x + blockIdx.x] = any;
}

/// weights = 2^(s - lse); gradients: weights (dp - delta). `s` and `dp` are given.
SIMT_DEV void differentiate(float& s, float& dp, float scale, float lse, float delta) {
  s = exp2_approximate(s * scale - lse);
  dp = s * (dp - delta);
}

/// c *= factor.
template <int M, int N> SIMT_DEV void scale_all(Sums<M, N>& c, float factor) {
  SIMT_UNROLL
  for (int m = 0; m < M; ++m) {
    SIMT_UNROLL
    for (int n = 0; n < N; ++n) {
      SIMT_UNROLL
      for (int e = 0; e < 4; ++e) c[m][n][e] *= factor;
    }
  }
}

template <int D> struct QueriesTile {
  static constexpr int kTall = 2, kQueries = 16 * kTall * kWarps, kKeys = 32;
  static constexpr int kStage = 2 * kKeys * D; ///< keys and values
  static constexpr size_t kBytes =
      sizeof(bf16) * (2 * kQueries * D + 2 * kStage) + sizeof(AttentionKeys) * kQueries + sizeof(Place);
};

/// The numbers of the warp's rows; of a lane's accumulators.
template <int M> struct RowNumbers {
  float lse[M][2], delta[M][2];
  SIMT_DEV RowNumbers(const Arguments& a, const Place& place, int row, int last, int lane) {
    constexpr int kTile = AttentionScratch::kTile;
    const int64_t tiles = (a.length + kTile - 1) / kTile, head = int64_t(place.batch) * a.H + place.head;
    SIMT_UNROLL
    for (int m = 0; m < M; ++m) {
      SIMT_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int t = row + 16 * m + 8 * half + lane / 4;
        const float* const numbers = a.numbers + (head * tiles + t / kTile) * AttentionScratch::kNumbers + t % kTile;
        lse[m][half] = t <= last ? numbers[AttentionScratch::kLse] : 0.0f;
        delta[m][half] = t <= last ? numbers[AttentionScratch::kDelta] : 0.0f;
      }
    }
  }
};

template <int M, int N>
SIMT_DEV void differentiate_rows(Sums<M, N>& s, Sums<M, N>& dp, float scale, const RowNumbers<M>& numbers) {
  SIMT_UNROLL
  for (int m = 0; m < M; ++m) {
    SIMT_UNROLL
    for (int n = 0; n < N; ++n) {
      SIMT_UNROLL
      for (int e = 0; e < 4; ++e)
        differentiate(s[m][n][e], dp[m][n][e], scale, numbers.lse[m][e / 2], numbers.delta[m][e / 2]);
    }
  }
}

/// dq of 128 queries of one head: ds = p (dout v - delta), dq = scale ds k.
template <int D> __global__ void __launch_bounds__(kThreads, 2) attention_flash_dq_kernel(Arguments a) {
  using L = QueriesTile<D>;
  constexpr int M = L::kTall, N = L::kKeys / 8;
  const int lane = threadIdx.x % kLanes;
  bf16* const q = dynamic_shared<bf16>();
  bf16* const dout = q + L::kQueries * D;
  bf16* const stages = dout + L::kQueries * D;
  AttentionKeys* const keys = reinterpret_cast<AttentionKeys*>(stages + 2 * L::kStage);
  Place& place = *reinterpret_cast<Place*>(keys + L::kQueries);
  find_place(&place, a, (a.length + L::kQueries - 1) / L::kQueries, a.H);
  const Queries<L::kQueries> t(a, place, keys);
  int at = t.any.first / L::kKeys * L::kKeys;
  if (at <= t.any.last) {
    const bf16* const rows = sequence_of(a.q, a.q_pitch, a, place.batch);
    const bf16* const gradients = sequence_of(a.dout, a.dout_pitch, a, place.batch);
    load_rows<D, L::kQueries>(q, rows + place.head * D, a.q_pitch, t.first, a.length);
    load_rows<D, L::kQueries>(dout, gradients + place.head * D, a.dout_pitch, t.first, a.length);
    load_keys<D, L::kKeys>(stages, a, place, at);
    cp_async_commit();
  }
  const RowNumbers<M> numbers(a, place, t.first + t.own, t.last, lane);
  Sums<M, D / 8> dq;
  clear<M, D / 8>(dq);
  for (int stage = 0; at <= t.any.last; at += L::kKeys, stage ^= 1) {
    const bf16* const k = take_keys<D, L::kKeys>(stages, stage, a, place, at, t.any.last);
    const Seen& seen = place.seen[threadIdx.x / kLanes];
    if (seen.sees_none(at, L::kKeys)) continue;
    Sums<M, N> s, ds;
    multiply_rows<D, M, N>(s, q + t.own * D, k, lane);
    if (!seen.sees_all(at, L::kKeys)) mask<M, N>(s, keys + t.own, at, lane);
    multiply_rows<D, M, N>(ds, dout + t.own * D, k + L::kKeys * D, lane);
    differentiate_rows<M, N>(s, ds, a.scale2, numbers);
    add_weighted<D, M, N>(dq, ds, k, lane);
  }
  scale_all<M, D / 8>(dq, a.scale);
  const int row = place.seen[threadIdx.x / kLanes].first;
  bf16* const to = sequence_of(a.dq, a.dq_pitch, a, place.batch) + int64_t(row) * a.dq_pitch + place.head * D;
  store_rows<D, M>(to, a.dq_pitch, a.length - row, q + t.own * D, dq, lane);
}

} // namespace flash
} // namespace SIMT_NS
} // namespace triax
