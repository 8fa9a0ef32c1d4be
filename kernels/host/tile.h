// Tiles of floats on the host: vectors of the widest registers, products of tiles, transposition. Only for units that
// are compiled once per instruction set. Every tile is aligned to a vector and its width is a multiple of one.
#pragma once
#include "kernels/simt.h"
#include <utility>

namespace triax {
inline namespace SIMT_NS {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16, kWide = 2, kTall = 8;
#elif defined(__AVX__)
constexpr int kLanes = 8, kWide = 2, kTall = 4;
#else
constexpr int kLanes = 4, kWide = 4, kTall = 4;
#endif
// kTall rows by kWide vectors of sums stay in registers while a product runs over its depth. On AVX-512 8 by 2 and 4 by
// 4 reach the peak of one multiply-add a cycle (12 by 2 99 %, 6 by 4 96 %, 14 by 2 93 %, 16 by 1 90 %).
using Vector = float __attribute__((vector_size(kLanes * 4), may_alias));
using Integers = int32_t __attribute__((vector_size(kLanes * 4), may_alias));

SIMT_FN Vector& vector(float* at, int64_t index) { return reinterpret_cast<Vector*>(at)[index]; }
SIMT_FN Integers integers(const int32_t* at, int64_t index) { return reinterpret_cast<const Integers*>(at)[index]; }

/// 2^x for x <= 0, to 2 ulp; 2^-126 below -126; NaN stays NaN (the polynomial is that of Cephes' exp2f).
SIMT_FN Vector exp2_of(Vector x) {
  x = x < -126.0f ? Vector{} - 126.0f : x;
  const Integers n = __builtin_convertvector(x - 0.5f, Integers); // to the nearest, since x <= 0
  const Vector r = x - __builtin_convertvector(n, Vector);
  Vector p = r * 1.535336188319500e-4f + 1.339887440266574e-3f;
  p = p * r + 9.618437357674640e-3f;
  p = p * r + 5.550332471162809e-2f;
  p = p * r + 2.402264791363012e-1f;
  p = p * r + 6.931472028550421e-1f;
  p = p * r + 1.0f;
  return p * reinterpret_cast<Vector>((n + 127) << 23);
}

/// An operand that is read element by element, at[row * row_stride + k * k_stride].
struct Scalars {
  const float* at;
  int64_t row, k; ///< strides
};
/// An operand of whole vectors, `pitch` floats from row to row.
struct Rows {
  float* at;
  int64_t pitch;
};

template <int Tall, int Wide> SIMT_FN void multiply_block(Rows c, Scalars a, Rows b, int64_t depth, bool add) {
  Vector sum[Tall][Wide];
  for (int r = 0; r < Tall; ++r)
    for (int v = 0; v < Wide; ++v) sum[r][v] = add ? vector(c.at + r * c.pitch, v) : Vector{};
  for (int64_t k = 0; k < depth; ++k)
    for (int r = 0; r < Tall; ++r) {
      const float scalar = a.at[r * a.row + k * a.k];
      for (int v = 0; v < Wide; ++v) sum[r][v] += scalar * vector(b.at + k * b.pitch, v);
    }
  for (int r = 0; r < Tall; ++r)
    for (int v = 0; v < Wide; ++v) vector(c.at + r * c.pitch, v) = sum[r][v];
}

template <int Wide>
__attribute__((noinline)) void multiply_strip(Rows c, Scalars a, Rows b, int64_t rows, int64_t depth, bool add) {
  int64_t r = 0;
  for (; r + kTall <= rows; r += kTall)
    multiply_block<kTall, Wide>({c.at + r * c.pitch, c.pitch}, {a.at + r * a.row, a.row, a.k}, b, depth, add);
  for (; r < rows; ++r)
    multiply_block<1, Wide>({c.at + r * c.pitch, c.pitch}, {a.at + r * a.row, a.row, a.k}, b, depth, add);
}

/// Calls strip(width, first) for columns [first, first + width vectors), which are all together.
template <class Strip> SIMT_FN void each_strip(int64_t columns, const Strip& strip) {
  int64_t first = 0;
  for (; first + kWide * kLanes <= columns; first += kWide * kLanes) strip(std::integral_constant<int, kWide>{}, first);
  for (; first < columns; first += kLanes) strip(std::integral_constant<int, 1>{}, first);
}

/// c[rows, columns] (+)= a[rows, depth] b[depth, columns].
void multiply(Rows c, Scalars a, Rows b, int64_t rows, int64_t columns, int64_t depth, bool add) {
  each_strip(columns, [&](auto width, int64_t first) {
    multiply_strip<decltype(width)::value>({c.at + first, c.pitch}, a, {b.at + first, b.pitch}, rows, depth, add);
  });
}

template <int... I> SIMT_FN Vector interleave_low(Vector a, Vector b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I / 2 + I % 2 * kLanes)...);
}
template <int... I> SIMT_FN Vector interleave_high(Vector a, Vector b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I / 2 + I % 2 * kLanes + kLanes / 2)...);
}

/// to[columns, rows] = from[rows, columns]^T, both multiples of kLanes. A square block is transposed by as many perfect
/// shuffles of its rows as its width has bits.
void transpose(float* to, const float* from, int64_t rows, int64_t columns) {
  constexpr std::make_integer_sequence<int, kLanes> kIndex;
  for (int64_t r = 0; r < rows; r += kLanes)
    for (int64_t c = 0; c < columns; c += kLanes) {
      Vector x[kLanes], y[kLanes];
      for (int i = 0; i < kLanes; ++i) x[i] = *reinterpret_cast<const Vector*>(from + (r + i) * columns + c);
      for (int round = 1; round < kLanes; round *= 2) {
        for (int i = 0; i < kLanes / 2; ++i) {
          y[2 * i] = interleave_low(x[i], x[i + kLanes / 2], kIndex);
          y[2 * i + 1] = interleave_high(x[i], x[i + kLanes / 2], kIndex);
        }
        for (int i = 0; i < kLanes; ++i) x[i] = y[i];
      }
      for (int i = 0; i < kLanes; ++i) vector(to + (c + i) * rows + r, 0) = x[i];
    }
}

/// to[rows, width] = from[count, columns] as floats, 0 beyond; rows of `from` are `pitch` apart.
template <class T>
void widen(float* to, int64_t rows, int64_t width, const T* from, int64_t pitch, int64_t count, int64_t columns) {
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[r * width + c] = float(from[r * pitch + c]);
    for (int64_t c = columns; c < width; ++c) to[r * width + c] = 0.0f;
  }
  memset(to + count * width, 0, size_t((rows - count) * width) * sizeof(float));
}

/// to[count, columns] = factor[count] * from[count, width].
template <class T> void narrow(T* to, int64_t pitch, const float* from, int64_t width, const float* factor,
                               int64_t count, int64_t columns) {
  for (int64_t r = 0; r < count; ++r)
    for (int64_t c = 0; c < columns; ++c) to[r * pitch + c] = triax::to<T>(from[r * width + c] * factor[r]);
}

} // namespace
} // namespace SIMT_NS
} // namespace triax
