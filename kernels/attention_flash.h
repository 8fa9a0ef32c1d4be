// Flash attention on tensor cores (Dao 2023, arXiv 2307.08691), for bf16 with sums in f32: what its kernels share.
//
// Every kernel has one form. A block of four warps keeps a tile of rows in shared memory (queries, or keys and values)
// and streams tiles of columns past it (keys and values, or queries), the next one under way while one is multiplied.
// A warp owns 16 M rows of the resident tile: their scores stay in its registers, where the accumulators of one product
// are, rounded to bf16, the left operand of the next, and each sum has one owner and one order. What bounds the rate
// beside the tensor cores is ldmatrix: M = 2 reads each fragment of the streamed tile once for 32 rows.
#pragma once
#include "kernels/attention_fragments.h"
#include "kernels/attention_mask.h"
#include "kernels/attention_shape.h"
#include <climits>

namespace triax {
inline namespace SIMT_NS {
namespace flash {

constexpr unsigned kAll = 0xffffffffu;
constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;

/// Everything a kernel reads and writes; the backward pass fills all of it.
struct Arguments {
  const bf16 *q, *kv;
  bf16* out; ///< read by the backward pass
  float* lse;
  const int* start;
  const StepState* state;
  const bf16* dout;
  bf16 *dq, *dkv;
  float* numbers; ///< see AttentionScratch
  int* reach;
  int q_pitch, kv_pitch, out_pitch, dq_pitch, dkv_pitch, dout_pitch; ///< elements from a position to the next
  int length, H, G, B, window, ring_ranks, ring_step;                ///< length: T of the sequences
  int group;                                                         ///< query heads of a key/value head
  int together;                                                      ///< heads that are worked on at the same time
  float scale, scale2;                                               ///< of the scores; the same in base 2
};

SIMT_DEV int least(int a, int b) { return a < b ? a : b; }
SIMT_DEV int warp_least(int v) {
  SIMT_UNROLL
  for (int o = 16; o > 0; o >>= 1) v = least(v, __shfl_xor_sync(kAll, v, o));
  return v;
}

/// The first row of a sequence.
template <class T> SIMT_DEV T* sequence_of(T* rows, int pitch, const Arguments& a, int batch) {
  return rows + int64_t(batch * a.length) * pitch;
}

/// Of keys and values, or of queries and gradients, that are worked on at the same time: half of the L2 of an H100,
/// less than that of an A100. The emulation's sequences are short: there a few heads are as much.
#if defined(TRIAX_EMULATED)
constexpr int64_t kTogetherBytes = 128 << 10;
#else
constexpr int64_t kTogetherBytes = 24 << 20;
#endif

/// The keys that row t of a sequence sees; beyond the sequence none. `start` is that of the sequence.
SIMT_DEV AttentionKeys keys_of(const Arguments& a, const int* start, int t) {
  if (t >= a.length) return {INT_MAX, -1};
  return attention_keys(AttentionContext(a.state, a.ring_ranks, a.ring_step, a.length), start[t], t, a.window);
}
/// From the first to the last key that any of a warp's lanes sees.
SIMT_DEV AttentionKeys keys_of_warp(AttentionKeys own) {
  if (own.first > own.last) own = {INT_MAX, -1};
  return {warp_least(own.first), -warp_least(-own.last)};
}

/// Which of neighbouring keys a warp's 32 queries see: none of them, or all see all.
struct Seen {
  int first;         ///< the first query
  AttentionKeys any; ///< from the first to the last that any sees
  AttentionKeys all; ///< that all see
  SIMT_DEV bool sees_none(int key, int keys) const { return key > any.last || key + keys <= any.first; }
  SIMT_DEV bool sees_all(int key, int keys) const { return key + keys - 1 <= all.last && key >= all.first; }
};

/// A block's tile of a head. All tiles of a few heads, whose keys and values the L2 holds together, come before those
/// of the next; among them the first of all heads, then the second.
struct Place {
  int tile, head, kv_head, batch;
  int begin, end;    ///< where tiles of queries are streamed: which ones
  Seen seen[kWarps]; ///< where a tile is of queries
};
/// Fills `place`, which lies in shared memory since registers are scarce in the loops, and waits for it.
SIMT_DEV void find_place(Place* place, const Arguments& a, int tiles, int heads) {
  if (threadIdx.x == 0) {
    const int group = tiles * a.together, first = int(blockIdx.x) / group * a.together, inside = blockIdx.x % group;
    const int count = least(a.together, heads * a.B - first), n = first + inside % count, head = n % heads;
    place->tile = inside / count;
    place->head = head;
    place->kv_head = head / (heads / a.G);
    place->batch = n / heads;
  }
  __syncthreads();
}

/// Keys [at, at + Keys) of the block's key/value head, on their way to shared memory, and behind them their values.
template <int D, int Keys> SIMT_DEV void load_keys(bf16* to, const Arguments& a, const Place& place, int at) {
  const bf16* const keys = sequence_of(a.kv, a.kv_pitch, a, place.batch) + place.kv_head * D;
  load_rows<D, Keys>(to, keys, a.kv_pitch, at, a.length);
  load_rows<D, Keys>(to + Keys * D, keys + a.G * D, a.kv_pitch, at, a.length);
}

/// A step through the tiles of keys, of which two places in `stages` are taken in turn: waits for the tile at `at`,
/// starts to load the next one where there is one up to `last`, and gives the one that is there.
template <int D, int Keys>
SIMT_DEV const bf16* take_keys(bf16* stages, int stage, const Arguments& a, const Place& place, int at, int last) {
  constexpr int kStage = 2 * Keys * D;
  cp_async_wait<0>();
  __syncthreads(); // this tile is there, and nobody reads the one before
  if (at + Keys <= last) load_keys<D, Keys>(stages + (stage ^ 1) * kStage, a, place, at + Keys);
  cp_async_commit();
  return stages + stage * kStage;
}

/// A block's tile of queries, a warp 32 of them.
template <int Count> struct Queries {
  int first, last;   ///< of the tile
  int own;           ///< the warp's first query, from the tile's
  AttentionKeys any; ///< from the first to the last key that any of the tile sees
  /// Fills place.seen and `keys`, in shared memory, with what each query sees, and waits for them.
  SIMT_DEV Queries(const Arguments& a, Place& place, AttentionKeys* keys)
      : first(((a.length - 1) / Count - place.tile) * Count), // the longest first
        last(least(first + Count, a.length) - 1), own(threadIdx.x / kLanes * kLanes) {
    static_assert(Count == kThreads);
    const AttentionKeys seen = keys_of(a, a.start + int64_t(place.batch) * a.length, first + int(threadIdx.x));
    keys[threadIdx.x] = seen;
    const AttentionKeys of_warp = keys_of_warp(seen), all{-warp_least(-seen.first), warp_least(seen.last)};
    if (threadIdx.x % kLanes == 0) place.seen[threadIdx.x / kLanes] = {first + own, of_warp, all};
    __syncthreads();
    any = {INT_MAX, -1};
    SIMT_UNROLL
    for (int w = 0; w < kWarps; ++w) {
      const AttentionKeys& part = place.seen[w].any;
      any = {least(any.first, part.first), -least(-any.last, -part.last)};
    }
  }
};

/// Scores of keys that a query does not see become -infinity. `keys` are those of the warp's queries.
template <int M, int N> SIMT_DEV void mask(Sums<M, N>& s, const AttentionKeys* keys, int key, int lane) {
  SIMT_UNROLL
  for (int m = 0; m < M; ++m) {
    SIMT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const AttentionKeys& seen = keys[16 * m + 8 * half + lane / 4];
      const int low = seen.first - key - lane % 4 * 2, high = seen.last - key - lane % 4 * 2;
      SIMT_UNROLL
      for (int n = 0; n < N; ++n) {
        SIMT_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& x = s[m][n][2 * half + e];
          x = 8 * n + e >= low && 8 * n + e <= high ? x : -INFINITY;
        }
      }
    }
  }
}

} // namespace flash
} // namespace SIMT_NS
} // namespace triax
