// RMSNorm and LayerNorm, one row per block. Bound by memory: the forward pass reads x (and the residual) and writes y
// (and the sum).
#include "kernels/each.h"
#include "kernels/norm_shape.h"
#include "kernels/partial_sums.h"

namespace triax {
inline namespace SIMT_NS {

template <int Block, int V, class T, bool Layer, bool Residual> __global__ void __launch_bounds__(Block)
    norm_forward_kernel(T* __restrict__ y, T* __restrict__ sum, float* __restrict__ statistics, const T* __restrict__ x,
                        const T* __restrict__ residual, const T* __restrict__ weight, const T* __restrict__ bias, int C,
                        float eps) {
  const int64_t row = blockIdx.x, at = row * C;
  const T* in = Residual ? sum + at : x + at;
  float total = 0.0f, squares = 0.0f;
  for (int i = threadIdx.x * V; i < C; i += Block * V) {
    float v[V];
    load<V>(v, x + at + i);
    if constexpr (Residual) {
      float r[V];
      load<V>(r, residual + at + i);
      for (int k = 0; k < V; ++k) v[k] = float(to<T>(v[k] + r[k])); // what is stored is what is normalised
      store<V>(sum + at + i, v);
    }
    for (int k = 0; k < V; ++k) {
      total += v[k];
      squares += v[k] * v[k];
    }
  }
  fetch_row(x + at + C, C);
  if (Residual) fetch_row(residual + at + C, C);
  const float mean = Layer ? block_sum<Block>(total) / C : 0.0f;
  if constexpr (Layer) { // a second pass: the squares of differences do not cancel
    squares = 0.0f;
    for (int i = threadIdx.x * V; i < C; i += Block * V) {
      float v[V];
      load<V>(v, in + i);
      for (int k = 0; k < V; ++k) squares += (v[k] - mean) * (v[k] - mean);
    }
  }
  const float rstd = rsqrtf(block_sum<Block>(squares) / C + eps);
  if (threadIdx.x == 0) {
    statistics[2 * row] = mean;
    statistics[2 * row + 1] = rstd;
  }
  for (int i = threadIdx.x * V; i < C; i += Block * V) {
    float v[V], w[V], b[V] = {};
    load<V>(v, in + i);
    load<V>(w, weight + i);
    if (Layer && bias) load<V>(b, bias + i);
    for (int k = 0; k < V; ++k) v[k] = (v[k] - mean) * rstd * w[k] + b[k];
    store<V>(y + at + i, v);
  }
}

/// Adds to V sums that the thread owns.
template <int V> SIMT_DEV void add_to(float* sums, const float (&v)[V]) {
  float s[V];
  load<V>(s, sums);
  for (int k = 0; k < V; ++k) s[k] += v[k];
  store<V>(sums, s);
}

/// Block b owns a contiguous chunk of rows. Its sums for dweight (and dbias) are kept in shared memory, where they fit,
/// and go to row b of `partial`.
template <int Block, int V, class T, bool Layer, bool Shared> __global__ void __launch_bounds__(Block, 4)
    norm_backward_kernel(T* dx, float* __restrict__ partial, const T* __restrict__ dy, const T* dresidual,
                         const T* __restrict__ x, const float* __restrict__ statistics, const T* __restrict__ weight,
                         int64_t rows, int C) {
  float* const dweight_out = partial + blockIdx.x * int64_t(C);
  float* const dbias_out = partial + (gridDim.x + blockIdx.x) * int64_t(C);
  float* __restrict__ dweight = Shared ? dynamic_shared<float>() : dweight_out;
  float* __restrict__ dbias = Shared ? dynamic_shared<float>() + C : dbias_out;
  for (int i = threadIdx.x; i < C; i += Block) {
    dweight[i] = 0.0f;
    if (Layer) dbias[i] = 0.0f;
  }
  __syncthreads();
  const int64_t chunk = ceil_div(rows, gridDim.x), first = blockIdx.x * chunk;
  const int64_t last = first + chunk < rows ? first + chunk : rows;
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * C;
    const float mean = statistics[2 * row], rstd = statistics[2 * row + 1];
    float dot = 0.0f, sum = 0.0f;
    for (int i = threadIdx.x * V; i < C; i += Block * V) {
      float a[V], d[V], w[V];
      load<V>(a, x + at + i);
      load<V>(d, dy + at + i);
      load<V>(w, weight + i);
      for (int k = 0; k < V; ++k) {
        a[k] = d[k] * (a[k] - mean) * rstd;
        dot += w[k] * a[k];
        sum += d[k] * w[k];
      }
      add_to<V>(dweight + i, a);
      if (Layer) add_to<V>(dbias + i, d);
    }
    fetch_row(x + at + C, C);
    fetch_row(dy + at + C, C);
    const float mean_dot = block_sum<Block>(dot) / C;
    const float mean_sum = Layer ? block_sum<Block>(sum) / C : 0.0f;
    for (int i = threadIdx.x * V; i < C; i += Block * V) {
      float a[V], d[V], w[V], r[V] = {};
      load<V>(a, x + at + i);
      load<V>(d, dy + at + i);
      load<V>(w, weight + i);
      if (dresidual) load<V>(r, dresidual + at + i);
      for (int k = 0; k < V; ++k) a[k] = rstd * (d[k] * w[k] - mean_sum - (a[k] - mean) * rstd * mean_dot) + r[k];
      store<V>(dx + at + i, a);
    }
    if (dresidual) fetch_row(dresidual + at + C, C);
  }
  if constexpr (Shared)
    for (int i = threadIdx.x * V; i < C; i += Block * V) {
      float s[V];
      load<V>(s, dweight + i);
      store<V>(dweight_out + i, s);
      if constexpr (Layer) {
        load<V>(s, dbias + i);
        store<V>(dbias_out + i, s);
      }
    }
}

/// Bytes of sums that a block keeps in shared memory, so that two blocks run beside each other on an sm_90.
constexpr int64_t kSharedSums = 96 * 1024;

static void launch_norm_forward(const Op& op, const LaunchContext& context) {
  const auto attributes = op.get<NormAttributes>();
  const int64_t rows = op[3].dim[0], C = op[3].dim[1];
  if (rows == 0) return;
  with_float_type(op[3].dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int B = kBlock<256>, V = kLoop<T>;
    const auto go = [&](auto kernel) {
      launch(context, dim3(unsigned(rows)), dim3(B), 0, kernel, op[0].data<T>(), op[1].data<T>(), op[2].data<float>(),
             op[3].data<T>(), op[4].data<T>(), op[5].data<T>(), op[6].data<T>(), int(C), attributes.eps);
    };
    const bool vectors = C % V == 0 && wide(op[0].data<T>(), op[1].data<T>(), op[3].data<T>(), op[4].data<T>(),
                                            op[5].data<T>(), op[6].data<T>());
    const auto pick = [&](auto layer, auto residual) {
      constexpr bool L = decltype(layer)::value, R = decltype(residual)::value;
      vectors ? go(&norm_forward_kernel<B, V, T, L, R>) : go(&norm_forward_kernel<B, 1, T, L, R>);
    };
    const bool layer = attributes.kind == NormKind::layer, residual = op.has(4);
    using Yes = std::true_type;
    using No = std::false_type;
    layer ? (residual ? pick(Yes{}, Yes{}) : pick(Yes{}, No{})) : (residual ? pick(No{}, Yes{}) : pick(No{}, No{}));
  });
}

static void launch_norm_backward(const Op& op, const LaunchContext& context) {
  const bool layer = op.get<NormAttributes>().kind == NormKind::layer;
  const int64_t rows = op[5].dim[0], C = op[5].dim[1];
  const int64_t partials = partial_sums(kIsHost, rows);
  float* partial = context.scratch.data<float>();
  if (rows == 0) return;
  constexpr int B = kBlock<256>;
  with_float_type(op[5].dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int V = kLoop<T>;
    const int64_t sums = (layer ? 2 : 1) * C * int64_t(sizeof(float));
    const bool fits = sums <= kSharedSums;
    const auto go = [&](auto kernel) {
      launch(context, dim3(unsigned(partials)), dim3(B), fits ? size_t(sums) : 0, kernel, op[0].data<T>(), partial,
             op[3].data<T>(), op[4].data<T>(), op[5].data<T>(), op[6].data<float>(), op[7].data<T>(), rows, int(C));
    };
    const bool vectors =
        C % V == 0 && wide(op[0].data<T>(), op[3].data<T>(), op[4].data<T>(), op[5].data<T>(), op[7].data<T>());
    const auto pick = [&](auto kind, auto shared) {
      constexpr bool L = decltype(kind)::value, S = decltype(shared)::value;
      vectors ? go(&norm_backward_kernel<B, V, T, L, S>) : go(&norm_backward_kernel<B, 1, T, L, S>);
    };
    using Yes = std::true_type;
    using No = std::false_type;
    layer ? (fits ? pick(Yes{}, Yes{}) : pick(Yes{}, No{})) : (fits ? pick(No{}, Yes{}) : pick(No{}, No{}));
  });
  add_partials(context, op[1].data<float>(), partial, partials, C);
  if (op.has(2)) add_partials(context, op[2].data<float>(), partial + partials * C, partials, C);
}

REGISTER_LAUNCH("norm_forward", launch_norm_forward);
REGISTER_LAUNCH("norm_backward", launch_norm_backward);

} // namespace SIMT_NS
} // namespace triax
