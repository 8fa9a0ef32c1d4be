// Rotary position embedding in place, one row per block: (a, b) -> (a cos - b sin, b cos + a sin). Bound by memory.
#include "kernels/each.h"
#include "kernels/rope_shape.h"

namespace triax {
inline namespace SIMT_NS {

template <int Block, int V, class T> __global__ void __launch_bounds__(Block)
    rope_kernel(T* x, const float* __restrict__ table, int64_t stride, int64_t period, int heads, int half,
                float sign) {
  const int64_t row = blockIdx.x;
  const float *cosines = table + row % period * 2 * half, *sines = cosines + half;
  // Each group of `lanes` threads walks along its own heads.
  const int want = (half + V - 1) / V, lanes = want < Block ? want : Block, groups = Block / lanes;
  const int group = int(threadIdx.x) / lanes, lane = int(threadIdx.x) % lanes;
  if (group >= groups) return;
  const auto turn = [=](T* a, auto width, int64_t j) {
    constexpr int W = decltype(width)::value;
    T* b = a + half;
    float u[W], v[W], c[W], s[W];
    load<W>(u, a + j);
    load<W>(v, b + j);
    load<W>(c, cosines + j);
    load<W>(s, sines + j);
    for (int k = 0; k < W; ++k) {
      const float first = u[k] * c[k] - sign * v[k] * s[k];
      v[k] = v[k] * c[k] + sign * u[k] * s[k];
      u[k] = first;
    }
    store<W>(a + j, u);
    store<W>(b + j, v);
  };
  for (int head = group; head < heads; head += groups) {
    T* a = x + row * stride + int64_t(head) * 2 * half;
    SIMT_SIMD()
    for (int j = lane * V; j < half; j += lanes * V) turn(a, Width<V>{}, j);
  }
}

static void launch_rope(const Op& op, const LaunchContext& context) {
  const auto a = op.get<RopeAttributes>();
  const int64_t rows = op[0].dim[0], heads = op[0].dim[1] / a.head_width, stride = op[0].stride[0],
                half = a.head_width / 2;
  if (rows == 0) return;
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int B = kBlock<256>, V = kVector<T, 1>;
    T* x = op[0].data<T>();
    const float* table = op[1].data<float>();
    const bool vectors = half % V == 0 && stride % V == 0 && wide(x, table);
    launch(context, dim3(unsigned(rows)), dim3(B), 0, vectors ? &rope_kernel<B, V, T> : &rope_kernel<B, 1, T>, x, table,
           stride, op[1].dim[0], int(heads), int(half), a.inverse ? -1.0f : 1.0f);
  });
}

REGISTER_LAUNCH("rope", launch_rope);

} // namespace SIMT_NS
} // namespace triax
