// Products of tiles of bf16 on the host, in pairs of neighbours along the depth.
#pragma once
#include "kernels/host/tile.h"
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace triax {
inline namespace SIMT_NS {
namespace {

// Products of bf16, summed in f32, by instructions of AVX512_BF16, which level v4 need not have: two for one
// multiply-add. Operands are pairs of neighbours along the depth, in words of 4 bytes, the first in the lower half.
struct PairScalars {
  const int32_t* at;
  int64_t row, k; ///< strides, in words
};
struct PairRows {
  const int32_t* at;
  int64_t pitch; ///< in words
};
#if defined(__AVX512F__)
inline bool multiplies_pairs() { return __builtin_cpu_supports("avx512bf16"); }
#define PAIRS_FN __attribute__((target("avx512bf16")))

template <int Tall, int Wide> PAIRS_FN inline __attribute__((always_inline)) void
multiply_pairs_block(Rows c, PairScalars a, PairRows b, int64_t depth, float factor, bool add) {
  Vector sum[Tall][Wide];
  for (int r = 0; r < Tall; ++r)
    for (int v = 0; v < Wide; ++v) sum[r][v] = add ? vector(c.at + r * c.pitch, v) : Vector{};
  for (int64_t k = 0; k < depth; ++k)
    for (int r = 0; r < Tall; ++r) {
      const Integers pair = Integers{} + a.at[r * a.row + k * a.k];
      for (int v = 0; v < Wide; ++v)
        sum[r][v] =
            Vector(_mm512_dpbf16_ps(__m512(sum[r][v]), __m512bh(pair), __m512bh(integers(b.at + k * b.pitch, v))));
    }
  for (int r = 0; r < Tall; ++r)
    for (int v = 0; v < Wide; ++v) vector(c.at + r * c.pitch, v) = sum[r][v] * factor;
}

template <int Wide> PAIRS_FN __attribute__((noinline)) void
multiply_pairs_strip(Rows c, PairScalars a, PairRows b, int64_t rows, int64_t depth, float factor, bool add) {
  int64_t r = 0;
  const auto rest = [&] { return PairScalars{a.at + r * a.row, a.row, a.k}; };
  for (; r + kTall <= rows; r += kTall)
    multiply_pairs_block<kTall, Wide>({c.at + r * c.pitch, c.pitch}, rest(), b, depth, factor, add);
  for (; r < rows; ++r) multiply_pairs_block<1, Wide>({c.at + r * c.pitch, c.pitch}, rest(), b, depth, factor, add);
}

/// c[rows, columns] = factor * a[rows, 2 depth] b[2 depth, columns]; or with `add` c += ..., where the factor is 1.
void multiply_pairs(Rows c, PairScalars a, PairRows b, int64_t rows, int64_t columns, int64_t depth, float factor,
                    bool add) {
  each_strip(columns, [&](auto width, int64_t first) {
    multiply_pairs_strip<decltype(width)::value>({c.at + first, c.pitch}, a, {b.at + first, b.pitch}, rows, depth,
                                                 factor, add);
  });
}

/// Two vectors as bf16, rounded to nearest, side by side: pairs of neighbours within each.
PAIRS_FN inline Integers pairs_along(Vector first, Vector second) {
  return Integers(_mm512_cvtne2ps_pbh(__m512(second), __m512(first)));
}
/// Pairs of an element of the first vector and the one of the second below it.
PAIRS_FN inline Integers pairs_across(Vector first, Vector second) {
  using Halves = uint16_t __attribute__((vector_size(kLanes * 2)));
  const auto rounded = [](Vector x) PAIRS_FN {
    return __builtin_convertvector(Halves(_mm512_cvtneps_pbh(__m512(x))), Integers);
  };
  return rounded(first) | rounded(second) << 16;
}
#undef PAIRS_FN
#else
inline bool multiplies_pairs() { return false; }
void multiply_pairs(Rows, PairScalars, PairRows, int64_t, int64_t, int64_t, float, bool) {}
inline Integers pairs_along(Vector, Vector) { return Integers{}; }
inline Integers pairs_across(Vector, Vector) { return Integers{}; }
#endif

/// The pairs of to[rows, width] = from[count, columns], 0 beyond.
template <class T>
void pairs_of(int32_t* to, int64_t rows, int64_t width, const T* from, int64_t pitch, int64_t count, int64_t columns) {
  const int64_t words = width / 2;
  memset(to, 0, size_t(rows * words) * sizeof(int32_t));
  if constexpr (sizeof(T) == 2)
    for (int64_t r = 0; r < count; ++r) memcpy(to + r * words, from + r * pitch, size_t(columns) * sizeof(T));
}

/// The pairs of neighbouring rows: to[rows / 2, width] of from[count, columns], 0 beyond.
template <class T> void pairs_of_rows(int32_t* to, int64_t rows, int64_t width, const T* from, int64_t pitch,
                                      int64_t count, int64_t columns) {
  memset(to, 0, size_t((rows + 1) / 2 * width) * sizeof(int32_t));
  if constexpr (sizeof(T) == 2)
    for (int64_t r = 0; r < count; ++r) {
      const auto* const row = reinterpret_cast<const uint16_t*>(from + r * pitch);
      int32_t* const words = to + r / 2 * width;
      if (r % 2 == 0)
        for (int64_t c = 0; c < columns; ++c) words[c] = row[c];
      else
        for (int64_t c = 0; c < columns; ++c) words[c] |= int32_t(uint32_t(row[c]) << 16);
    }
}

} // namespace
} // namespace SIMT_NS
} // namespace triax
