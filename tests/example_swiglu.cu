// The example of kernels/README.md: a second implementation of swiglu_forward, which gives a thread several rows' same
// columns. It is compiled and tested like the kernels in kernels/.
#include "kernels/each.h"
#include "kernels/exp.h"

namespace triax {
inline namespace SIMT_NS {
namespace { // a kernel of the same name elsewhere is another one

constexpr int kExampleRows = 4; ///< rows of a block

/// y[rows, F] = silu(gate) * up, where x[rows, 2 F] holds gate and up side by side.
template <int Block, int V, class T> __global__ void __launch_bounds__(Block)
    example_swiglu_kernel(T* __restrict__ y, const T* __restrict__ x, int64_t rows, int64_t F) {
  const int64_t first = blockIdx.x * kExampleRows, end = first + kExampleRows < rows ? first + kExampleRows : rows;
  for (int64_t row = first; row < end; ++row) {
    const T *gate = x + row * 2 * F, *up = gate + F;
    each<Block, V>(0, F, [=](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float g[W], u[W];
      load<W>(g, gate + i);
      load<W>(u, up + i);
      for (int k = 0; k < W; ++k) g[k] = g[k] / (1.0f + __expf(-g[k])) * u[k];
      store<W>(y + row * F + i, g);
    });
  }
}

void launch_example_swiglu(const Op& op, const LaunchContext& context) {
  const int64_t rows = op[0].dim[0], F = op[0].dim[1];
  if (rows == 0 || F == 0) return;
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int B = kBlock<128>, V = kVector<T, 1>;
    T *y = op[0].data<T>(), *x = op[1].data<T>();
    const bool vectors = F % V == 0 && wide(y, x);
    launch(context, dim3(unsigned(ceil_div(rows, kExampleRows))), dim3(B), 0,
           vectors ? &example_swiglu_kernel<B, V, T> : &example_swiglu_kernel<B, 1, T>, y, x, rows, F);
  });
}

REGISTER_IMPLEMENTATION("swiglu_forward", "example", launch_example_swiglu);

} // namespace
} // namespace SIMT_NS
} // namespace triax
