// Loops for kernels whose elements are independent. An element function is called with the number of consecutive
// elements to do and the first of them: `f(Width<V>{}, i)`.
#pragma once
#include "kernels/simt.h"
#include <type_traits>

namespace triax {
inline namespace SIMT_NS {

template <int V> using Width = std::integral_constant<int, V>;

/// The block's threads do [begin, end), V at a time and what is left one by one.
template <int Block, int V, class F> SIMT_DEV void each(int64_t begin, int64_t end, const F& f) {
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

constexpr int kEachBlock = kBlock<256>;
template <int V> constexpr int64_t kEachChunk = kIsHost ? 16384 : kEachBlock* V * 4;

template <int V, class F> __global__ void __launch_bounds__(kEachBlock)
    each_kernel(const F f, int64_t from, int64_t to) {
  const int64_t begin = from + blockIdx.x * kEachChunk<V>;
  each<kEachBlock, V>(begin, begin + kEachChunk<V> < to ? begin + kEachChunk<V> : to, f);
}

/// May these be accessed 128 bits at a time? The host does not care.
template <class... P> SIMT_FN bool wide(const P*... p) {
  return kIsHost || ((reinterpret_cast<uintptr_t>(p) % 16 == 0) && ...);
}

/// f for all of [from, to): V elements at a time where `wide`, else one.
template <int V, class F>
inline void launch_each(const LaunchContext& context, int64_t from, int64_t to, bool wide, const F& f) {
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
