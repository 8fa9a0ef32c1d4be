// RMSNorm of heads, in place in the rows of a fused projection. A group of lanes has one head at a time. Bound by
// memory: forward reads x and writes it twice (the result, and what it was), backward reads two and writes one.
#include "kernels/each.h"
#include "kernels/head_norm_shape.h"
#include "kernels/partial_sums.h"

namespace triax {
inline namespace SIMT_NS {

/// The sum over a group of `Lanes` neighbours of a warp, for all of them; every lane of the warp must come here.
template <int Lanes> SIMT_DEV float lanes_sum(float v) {
  SIMT_UNROLL
  for (int o = Lanes / 2; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

/// One block a row.
template <int Block, int Lanes, int V, class T> __global__ void __launch_bounds__(Block)
    head_norm_forward_kernel(T* x, T* __restrict__ before, const T* __restrict__ weight, int64_t stride, int heads,
                             int queries, int D, float eps) {
  constexpr int kGroups = Block / Lanes;
  const int group = int(threadIdx.x) / Lanes, lane = int(threadIdx.x) % Lanes;
  const int64_t row = blockIdx.x;
  for (int first = 0; first < heads; first += kGroups) { // all groups, so that whole warps meet in the sum
    const int head = first + group;
    const int end = head < heads ? D : 0;
    T* own = x + row * stride + int64_t(head) * D;
    T* kept = before + (row * heads + head) * D;
    const T* w = weight + (head < queries ? 0 : D);
    float squares = 0.0f;
    for (int i = lane * V; i < end; i += Lanes * V) {
      float v[V];
      load<V>(v, own + i);
      for (int k = 0; k < V; ++k) squares += v[k] * v[k];
      store<V>(kept + i, v);
    }
    const float rstd = rsqrtf(lanes_sum<Lanes>(squares) / float(D) + eps);
    for (int i = lane * V; i < end; i += Lanes * V) {
      float v[V], s[V];
      load<V>(v, own + i);
      load<V>(s, w + i);
      for (int k = 0; k < V; ++k) v[k] *= rstd * s[k];
      store<V>(own + i, v);
    }
  }
}

/// Block b owns a contiguous chunk of rows; its sums for dweight go to row b of `partial`, by way of one such row a
/// group in shared memory.
template <int Block, int Lanes, int V, class T> __global__ void __launch_bounds__(Block, 2)
    head_norm_backward_kernel(T* dx, float* __restrict__ partial, const T* __restrict__ before,
                              const T* __restrict__ weight, int64_t stride, int64_t rows, int heads, int queries, int D,
                              float eps) {
  constexpr int kGroups = Block / Lanes;
  const int group = int(threadIdx.x) / Lanes, lane = int(threadIdx.x) % Lanes;
  float* sums = dynamic_shared<float>(); // [kGroups, 2D]
  for (int i = threadIdx.x; i < kGroups * 2 * D; i += Block) sums[i] = 0.0f;
  __syncthreads();
  const int64_t chunk = ceil_div(rows, gridDim.x), begin = blockIdx.x * chunk;
  const int64_t last = begin + chunk < rows ? begin + chunk : rows;
  for (int64_t row = begin; row < last; ++row)
    for (int first = 0; first < heads; first += kGroups) { // all groups, as above
      const int head = first + group, part = head < queries ? 0 : D;
      const int end = head < heads ? D : 0;
      T* own = dx + row * stride + int64_t(head) * D;
      const T *x = before + (row * heads + head) * D, *w = weight + part;
      float* __restrict__ sum = sums + int64_t(group) * 2 * D + part;
      float squares = 0.0f, dot = 0.0f;
      for (int i = lane * V; i < end; i += Lanes * V) {
        float a[V], d[V], s[V];
        load<V>(a, x + i);
        load<V>(d, own + i);
        load<V>(s, w + i);
        for (int k = 0; k < V; ++k) {
          squares += a[k] * a[k];
          dot += a[k] * d[k] * s[k];
        }
      }
      const float rstd = rsqrtf(lanes_sum<Lanes>(squares) / float(D) + eps);
      const float shift = lanes_sum<Lanes>(dot) / float(D) * rstd * rstd;
      for (int i = lane * V; i < end; i += Lanes * V) {
        float a[V], d[V], s[V];
        load<V>(a, x + i);
        load<V>(d, own + i);
        load<V>(s, w + i);
        for (int k = 0; k < V; ++k) {
          sum[i + k] += d[k] * a[k] * rstd;
          d[k] = rstd * (d[k] * s[k] - a[k] * shift);
        }
        store<V>(own + i, d);
      }
    }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * D; i += Block) {
    float total = sums[i];
    for (int g = 1; g < kGroups; ++g) total += sums[g * 2 * D + i];
    partial[blockIdx.x * int64_t(2) * D + i] = total;
  }
}

/// Calls go(lanes, V) with as few lanes as hold a head, V elements each where rows and heads allow that. The host has
/// one thread for a head.
template <class T, class Go> void with_lanes(int64_t D, bool vectors, const Go& go) {
  if constexpr (kIsHost) {
    go(Width<1>{}, Width<1>{});
  } else {
    constexpr int V = kVector<T, 1>;
    if (!vectors || D % V != 0)
      go(Width<32>{}, Width<1>{});
    else if (D <= 8 * V)
      go(Width<8>{}, Width<V>{});
    else if (D <= 16 * V)
      go(Width<16>{}, Width<V>{});
    else
      go(Width<32>{}, Width<V>{});
  }
}

static void launch_head_norm_forward(const Op& op, const LaunchContext& context) {
  const auto a = op.get<HeadNormAttributes>();
  const int64_t rows = op[0].dim[0], heads = op[0].dim[1] / a.head_width, stride = op[0].stride[0];
  if (rows == 0 || heads == 0) return;
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int B = kBlock<256>;
    T *x = op[0].data<T>(), *before = op[1].data<T>();
    const T* weight = op[2].data<T>();
    const bool vectors = wide(x, before, weight) && stride % kVector<T, 1> == 0;
    with_lanes<T>(a.head_width, vectors, [&](auto lanes, auto width) {
      launch(context, dim3(unsigned(rows)), dim3(B), 0, &head_norm_forward_kernel<B, lanes(), width(), T>, x, before,
             weight, stride, int(heads), int(a.queries), int(a.head_width), a.eps);
    });
  });
}

static void launch_head_norm_backward(const Op& op, const LaunchContext& context) {
  const auto a = op.get<HeadNormAttributes>();
  const int64_t rows = op[0].dim[0], heads = op[0].dim[1] / a.head_width, stride = op[0].stride[0];
  if (rows == 0 || heads == 0) return;
  const int64_t partials = partial_sums(kIsHost, rows), columns = 2 * int64_t(a.head_width);
  float* partial = context.scratch.data<float>();
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int B = kBlock<256>;
    T* dx = op[0].data<T>();
    const T *before = op[2].data<T>(), *weight = op[3].data<T>();
    const bool vectors = wide(dx, before, weight) && stride % kVector<T, 1> == 0;
    with_lanes<T>(a.head_width, vectors, [&](auto lanes, auto width) {
      const size_t shared = size_t(B / lanes()) * size_t(columns) * sizeof(float);
      launch(context, dim3(unsigned(partials)), dim3(B), shared, &head_norm_backward_kernel<B, lanes(), width(), T>, dx,
             partial, before, weight, stride, rows, int(heads), int(a.queries), int(a.head_width), a.eps);
    });
  });
  add_partials(context, op[1].data<float>(), partial, partials, columns);
}

REGISTER_LAUNCH("head_norm_forward", launch_head_norm_forward);
REGISTER_LAUNCH("head_norm_backward", launch_head_norm_backward);

} // namespace SIMT_NS
} // namespace triax
