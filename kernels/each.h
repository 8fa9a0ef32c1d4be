// Loops for kernels whose elements are independent. An element function is called with the number of consecutive
// elements to do and the first of them: `f(Width<V>{}, i)`.
#pragma once
#include "kernels/simt.h"
#include <type_traits>

namespace triax {
inline namespace SIMT_NS {

template <int V> using Width = std::integral_constant<int, V>;

/// A row that is read, and how many elements further the next one starts.
template <class T> struct Row {
  const T* at;
  int64_t next;
};

/// Of a loop that has come to element i of a row of `end`, the host fetches what it will read kAhead elements later, in
/// this row or the next: its own prefetcher starts anew on every row, and bf16 takes so much arithmetic by the byte
/// that the waits are not hidden. (f32 does not, and is slower for it.)
constexpr int64_t kFetched = 128, kAhead = 512;
template <class T> SIMT_FN void fetch_ahead(const Row<T>& row, int64_t i, int64_t end) {
  if constexpr (sizeof(T) != 2) return;
  const int64_t ahead = i + kAhead < end ? i + kAhead : i + kAhead - end + row.next;
  const uintptr_t at = reinterpret_cast<uintptr_t>(row.at) + uintptr_t(ahead) * sizeof(T);
  for (uintptr_t b = 0; b < kFetched * sizeof(T); b += 64) __builtin_prefetch(reinterpret_cast<const void*>(at + b));
}

/// As `fetch_ahead`, for a whole row that is read next; into the second level, since rows of a power of two collide in
/// the first.
template <class T> SIMT_FN void fetch_row(const T* row, int64_t n) {
  if constexpr (kIsHost && sizeof(T) == 2)
    for (int64_t i = 0; i < n; i += 64 / int(sizeof(T))) __builtin_prefetch(row + i, 0, 2);
}

/// The block's threads do [begin, end), V at a time and what is left one by one. `rows` are read from 0 to `end`.
template <int Block, int V, class F, class... R>
SIMT_DEV void each(int64_t begin, int64_t end, const F& f, const R&... rows) {
  if constexpr (sizeof...(R) > 0 && kIsHost) {
    for (int64_t i = begin; i < end; i += kFetched) {
      (fetch_ahead(rows, i, end), ...);
      each<Block, V>(i, i + kFetched < end ? i + kFetched : end, f);
    }
    return;
  }
  const int64_t full = begin + (end - begin) / V * V;
  if constexpr (V > 1)
    for (int64_t i = begin + int64_t(threadIdx.x) * V; i < full; i += Block * V) f(Width<V>{}, i);
  SIMT_SIMD()
  for (int64_t i = (V > 1 ? full : begin) + threadIdx.x; i < end; i += Block) f(Width<1>{}, i);
}

/// sum[k] = x[row_of(0) + k] + ... + x[row_of(rows - 1) + k] for a thread's V columns, of which `columns` are there
/// (all but on the host, whose tile may reach past the end). Returns how many it did.
template <int V, class T, class RowOf> SIMT_DEV int sum_rows(float* __restrict__ sum, const T* __restrict__ x,
                                                             int64_t columns, int64_t rows, const RowOf& row_of) {
  const int count = kIsHost && columns < V ? int(columns) : V;
  float own[V] = {};
  for (int64_t n = 0; n < rows; ++n) {
    const T* row = x + row_of(n);
    if constexpr (kIsHost) {
      for (int k = 0; k < count; ++k) own[k] += float(row[k]);
    } else {
      float v[V];
      load<V>(v, row);
      for (int k = 0; k < V; ++k) own[k] += v[k];
    }
  }
  for (int k = 0; k < count; ++k) sum[k] = own[k];
  return count;
}

/// out += the rows of `partial`, in their order.
template <int Block, int V> __global__ void __launch_bounds__(Block)
    add_partials_kernel(float* __restrict__ out, const float* __restrict__ partial, int64_t partials, int64_t C) {
  const int64_t column = (int64_t(blockIdx.x) * Block + threadIdx.x) * V;
  if (column >= C) return;
  float sum[V];
  const int count = sum_rows<V>(sum, partial + column, C - column, partials, [=](int64_t n) { return n * C; });
  for (int k = 0; k < count; ++k) out[column + k] += sum[k];
}
/// The last of a sum over many rows, see partial_sums.h: out[C] += partial[partials, C].
inline void add_partials(const LaunchContext& context, float* out, const float* partial, int64_t partials, int64_t C) {
  constexpr int B = kBlock<128>, V = kIsHost ? 64 : 1;
  launch(context, dim3(unsigned(ceil_div(C, B * V))), dim3(B), 0, &add_partials_kernel<B, V>, out, partial, partials,
         C);
}

constexpr int kEachBlock = kBlock<256>;
template <int V> constexpr int64_t kEachChunk = kIsHost ? 4096 : kEachBlock* V * 4;

template <int V, class F> __global__ void __launch_bounds__(kEachBlock, 4)
    each_kernel(const F f, int64_t from, int64_t to) {
  const int64_t begin = from + blockIdx.x * kEachChunk<V>;
  each<kEachBlock, V>(begin, begin + kEachChunk<V> < to ? begin + kEachChunk<V> : to, f);
}

/// May these be accessed 128 bits at a time? The host does not care.
template <class... P> SIMT_FN bool wide(const P*... p) {
  return kIsHost || ((reinterpret_cast<uintptr_t>(p) % 16 == 0) && ...);
}

/// Elements that a loop over T does at a time.
template <class T> struct EachWidth { static constexpr int value = kIsHost ? kLoop<T> : 8; };

/// f for all of [from, to): several elements of T at a time where `wide`, else one.
template <class T, class F>
inline void launch_each(const LaunchContext& context, int64_t from, int64_t to, bool wide, const F& f) {
  constexpr int V = EachWidth<T>::value;
  if (from >= to) return;
  if (wide)
    launch(context, dim3(unsigned(ceil_div(to - from, kEachChunk<V>))), dim3(kEachBlock), 0, &each_kernel<V, F>, f,
           from, to);
  else
    launch(context, dim3(unsigned(ceil_div(to - from, kEachChunk<1>))), dim3(kEachBlock), 0, &each_kernel<1, F>, f,
           from, to);
}

} // namespace SIMT_NS
} // namespace triax
