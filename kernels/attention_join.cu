// Parts of attention joined: each weighs as much as the sum of exponentials that it was divided by. One row per block.
// Bound by memory.
#include "kernels/each.h"

namespace triax {
inline namespace SIMT_NS {

/// Shares of a whole, and its lse.
struct Shares {
  float a, b, lse;
};
SIMT_FN Shares shares_of(float lse_a, float lse_b) {
  const float top = lse_a > lse_b ? lse_a : lse_b;
  if (top == -INFINITY) return {0.0f, 0.0f, -INFINITY}; // neither saw anything
  const float a = expf(lse_a - top), b = expf(lse_b - top), total = a + b;
  return {a / total, b / total, top + logf(total)};
}

/// Each group of `lanes` threads walks along its own heads. `out` may be `a`.
template <int Block, int V, class To, class A, class B> __global__ void __launch_bounds__(Block)
    attention_join_kernel(To* out, float* __restrict__ lse, const A* a, const float* __restrict__ lse_a,
                          const B* __restrict__ b, const float* __restrict__ lse_b, int64_t T, int heads, int D) {
  const int64_t row = blockIdx.x, sequence = row / T, t = row % T;
  const int want = (D + V - 1) / V, lanes = want < Block ? want : Block, groups = Block / lanes;
  const int group = int(threadIdx.x) / lanes, lane = int(threadIdx.x) % lanes;
  if (group >= groups) return;
  const auto join = [](To* to, const A* x, const B* y, const Shares& s, auto width) {
    constexpr int W = decltype(width)::value;
    float u[W], v[W];
    load<W>(u, x);
    load<W>(v, y);
    for (int k = 0; k < W; ++k) u[k] = s.a * u[k] + s.b * v[k];
    store<W>(to, u);
  };
  for (int h = group; h < heads; h += groups) {
    const int64_t number = (sequence * heads + h) * T + t, at = (row * heads + h) * D;
    const Shares s = shares_of(lse_a[number], lse_b[number]);
    if (lane == 0) lse[number] = s.lse;
    SIMT_SIMD()
    for (int d = lane * V; d < D; d += lanes * V) join(out + at + d, a + at + d, b + at + d, s, Width<V>{});
  }
}

static void launch_attention_join(const Op& op, const LaunchContext& context) {
  const Tensor &out = op[0], &lse = op[1], &a = op.has(2) ? op[2] : op[0], &b = op[4];
  const int64_t rows = out.dim[0], heads = lse.dim[1], D = heads > 0 ? out.dim[1] / heads : 0;
  if (rows == 0 || D == 0) return;
  with_float_type(out.dtype, [&](auto to) {
    with_float_type(a.dtype, [&](auto from_a) {
      with_float_type(b.dtype, [&](auto from_b) {
        using To = decltype(to);
        using A = decltype(from_a);
        using B = decltype(from_b);
        constexpr int kThreads = kBlock<256>, V = kIsHost ? 1 : 8;
        const auto go = [&](auto width) {
          launch(context, dim3(unsigned(rows)), dim3(kThreads), 0,
                 &attention_join_kernel<kThreads, decltype(width)::value, To, A, B>, out.data<To>(), lse.data<float>(),
                 a.data<A>(), op[3].data<float>(), b.data<B>(), op[5].data<float>(), lse.dim[2], int(heads), int(D));
        };
        D % V == 0 && wide(out.data<To>(), a.data<A>(), b.data<B>()) ? go(Width<V>{}) : go(Width<1>{});
      });
    });
  });
}

REGISTER_LAUNCH("attention_join", launch_attention_join);

} // namespace SIMT_NS
} // namespace triax
