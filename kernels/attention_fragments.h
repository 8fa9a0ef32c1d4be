// Tiles of a head's rows in shared memory and their products on tensor cores, for flash attention: bf16, with sums in
// f32.
#pragma once
#include "kernels/mma.h"

namespace triax {
inline namespace SIMT_NS {
namespace flash {

constexpr int kLanes = 32, kWarps = 4, kThreads = kWarps * kLanes;

/// Rows of a head in shared memory, D elements each, in chunks of 16 bytes that are permuted within their row: one
/// chunk of 8 neighbouring rows lies in all banks, so that ldmatrix meets no conflict.
template <int D> struct Rows {
  static_assert(D % 32 == 0);
  static constexpr int kChunks = D / 8;
  SIMT_DEV static int twist(int row) { return D % 64 == 0 ? row & 7 : row >> 1 & 3; }
  SIMT_DEV static int at(int row, int chunk) { return row * D + (chunk ^ twist(row)) * 8; }
};

/// Starts to copy the rows [first, first + Count) of a head; zeros beyond the sequence.
template <int D, int Count> SIMT_DEV void load_rows(bf16* tile, const bf16* head, int pitch, int first, int length) {
  constexpr int kAcross = D % 64 == 0 ? D / 8 : 4, kDown = kThreads / kAcross; // a thread's chunks share their twist
  static_assert(Count % kDown == 0 && kDown % 8 == 0);
  const int row = int(threadIdx.x) / kAcross, chunk = int(threadIdx.x) % kAcross;
  const bf16* from = head + int64_t(first + row) * pitch + chunk * 8;
  bf16* const to = tile + Rows<D>::at(row, chunk);
  SIMT_UNROLL
  for (int n = 0; n < Count; n += kDown, from += int64_t(kDown) * pitch) {
    SIMT_UNROLL
    for (int c = 0; c < D; c += kAcross * 8) cp_async_16(to + n * D + c, from + c, first + row + n < length);
  }
}

/// Where a lane points ldmatrix, for fragments of 16 x 16 at a row that is a multiple of 8 and an even chunk.
template <int D> struct Fragments {
  int row, twist;
  SIMT_DEV Fragments(int row_in, int chunk) : row(row_in * D), twist((Rows<D>::twist(row_in) ^ chunk) * 8) {}
  SIMT_DEV const bf16* at(const bf16* tile, int r, int chunk) const { return tile + r * D + row + (chunk * 8 ^ twist); }
};
/// Left operands, and right ones that are read transposed: the second 8 rows are the second matrix.
template <int D> SIMT_DEV Fragments<D> tall_fragments(int lane) { return {lane % 16, lane / 16}; }
/// Right operands: the second chunk is the second matrix.
template <int D> SIMT_DEV Fragments<D> wide_fragments(int lane) { return {lane % 8 + lane / 16 * 8, lane / 8 % 2}; }

/// Accumulators of 16 M rows by 8 N columns: [m][n][e] is row 16 m + lane / 4 + 8 (e / 2), column 8 n + 2 (lane % 4) +
/// e % 2.
template <int M, int N> using Sums = float[M][N][4];

template <int M, int N> SIMT_DEV void clear(Sums<M, N>& c) {
  SIMT_UNROLL
  for (int m = 0; m < M; ++m) {
    SIMT_UNROLL
    for (int n = 0; n < N; ++n) {
      SIMT_UNROLL
      for (int e = 0; e < 4; ++e) c[m][n][e] = 0.0f;
    }
  }
}

/// Left operands of 16 M rows, whole.
template <int D, int M> using Left = uint32_t[D / 16][M][4];
template <int D, int M> SIMT_DEV void load_left(Left<D, M>& x, const bf16* rows, int lane) {
  const Fragments<D> tall = tall_fragments<D>(lane);
  SIMT_UNROLL
  for (int i = 0; i < D / 16; ++i) {
    SIMT_UNROLL
    for (int m = 0; m < M; ++m) ldmatrix_x4(x[i][m], tall.at(rows, 16 * m, 2 * i));
  }
}

/// c += 16 M rows of a step of the depth times 8 N rows of b.
template <int D, int M, int N> SIMT_DEV void multiply_step(Sums<M, N>& c, const uint32_t (&x)[M][4], const bf16* b,
                                                           int chunk, const Fragments<D>& wide) {
  SIMT_UNROLL
  for (int n = 0; n < N; n += 2) {
    uint32_t y[4];
    ldmatrix_x4(y, wide.at(b, 8 * n, chunk));
    SIMT_UNROLL
    for (int m = 0; m < M; ++m) {
      mma_m16n8k16(c[m][n], x[m], {y[0], y[1]});
      mma_m16n8k16(c[m][n + 1], x[m], {y[2], y[3]});
    }
  }
}
/// c = rows of a times rows of b, 16 M by 8 N of them.
template <int D, int M, int N> SIMT_DEV void multiply_rows(Sums<M, N>& c, const bf16* a, const bf16* b, int lane) {
  const Fragments<D> tall = tall_fragments<D>(lane), wide = wide_fragments<D>(lane);
  clear<M, N>(c);
  SIMT_UNROLL
  for (int i = 0; i < D / 16; ++i) {
    uint32_t x[M][4];
    SIMT_UNROLL
    for (int m = 0; m < M; ++m) ldmatrix_x4(x[m], tall.at(a, 16 * m, 2 * i));
    multiply_step<D, M, N>(c, x, b, 2 * i, wide);
  }
}
template <int D, int M, int N>
SIMT_DEV void multiply_rows(Sums<M, N>& c, const Left<D, M>& a, const bf16* b, int lane) {
  const Fragments<D> wide = wide_fragments<D>(lane);
  clear<M, N>(c);
  SIMT_UNROLL
  for (int i = 0; i < D / 16; ++i) multiply_step<D, M, N>(c, a[i], b, 2 * i, wide);
}

/// c += weights, rounded, times the 8 N rows of b.
template <int D, int M, int N>
SIMT_DEV void add_weighted(Sums<M, D / 8>& c, const Sums<M, N>& weights, const bf16* b, int lane) {
  const Fragments<D> tall = tall_fragments<D>(lane);
  SIMT_UNROLL
  for (int n = 0; n < N; n += 2) {
    uint32_t x[M][4];
    SIMT_UNROLL
    for (int m = 0; m < M; ++m) {
      SIMT_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float(&w)[4] = weights[m][n + i / 2];
        x[m][i] = pack_bf16(w[i % 2 * 2], w[i % 2 * 2 + 1]);
      }
    }
    SIMT_UNROLL
    for (int chunk = 0; chunk < D / 8; chunk += 2) {
      uint32_t y[4];
      ldmatrix_x4_trans(y, tall.at(b, 8 * n, chunk));
      SIMT_UNROLL
      for (int m = 0; m < M; ++m) {
        mma_m16n8k16(c[m][chunk], x[m], {y[0], y[1]});
        mma_m16n8k16(c[m][chunk + 1], x[m], {y[2], y[3]});
      }
    }
  }
}

/// Writes the warp's rows, as far as there are `count`; `tile` is where its part of the resident tile was.
template <int D, int M>
SIMT_DEV void store_rows(bf16* to, int pitch, int count, bf16* tile, const Sums<M, D / 8>& c, int lane) {
  struct __attribute__((may_alias, aligned(4))) Pair {
    uint32_t bits;
  };
  __syncwarp(); // every lane has read the tile
  SIMT_UNROLL
  for (int m = 0; m < M; ++m) {
    SIMT_UNROLL
    for (int half = 0; half < 2; ++half) {
      SIMT_UNROLL
      for (int n = 0; n < D / 8; ++n) {
        const float(&x)[4] = c[m][n];
        bf16* const at = tile + Rows<D>::at(16 * m + 8 * half + lane / 4, n) + lane % 4 * 2;
        reinterpret_cast<Pair*>(at)->bits = pack_bf16(x[2 * half], x[2 * half + 1]);
      }
    }
  }
  __syncwarp();
  for (int i = lane; i < 16 * M * Rows<D>::kChunks; i += kLanes) {
    const int row = i / Rows<D>::kChunks, chunk = i % Rows<D>::kChunks;
    if (row < count)
      *reinterpret_cast<uint4*>(to + int64_t(row) * pitch + chunk * 8) =
          *reinterpret_cast<const uint4*>(tile + Rows<D>::at(row, chunk));
  }
}

} // namespace flash
} // namespace SIMT_NS
} // namespace triax
