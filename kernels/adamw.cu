// AdamW over a flat range, and the gradient's norm. Bound by memory: AdamW moves 30 bytes per bf16 parameter.
#include "kernels/adamw_shape.h"
#include "kernels/each.h"
#include "kernels/step_state.h"

namespace triax {
inline namespace SIMT_NS {

/// The weight's value is held in f32: in `master`, which is the weights themselves where they are f32.
template <class T> struct AdamWRange {
  T* weights;
  float *master, *moment1, *moment2;
  const float* gradient;
  AdamWAttributes a;
};

template <class T, bool Stochastic> struct AdamWStep {
  AdamWRange<T> r;
  float scale, rate, moment1_scale, moment2_scale;
  int64_t first; ///< number of this piece's first parameter
  uint32_t tensor_rank, step, key0, key1;

  /// Sixteen bits for each of the parameters numbered [8 group, 8 group + 8), two to a word.
  SIMT_DEV Random4 bits(int64_t group) const {
    const uint32_t rank = 8 * group + 7 >= r.a.shared_from ? 0 : tensor_rank;
    return philox(uint32_t(group), uint32_t(group >> 32) ^ rank << 12, step, 0x6164616du, key0, key1); // "adam"
  }
  template <int V> SIMT_DEV void random(uint32_t (&random)[V], int64_t element) const {
    if constexpr (V % 8 == 0) {
      for (int q = 0; q < V / 8; ++q) {
        const Random4 w = bits(element / 8 + q);
        const uint32_t word[4] = {w.x, w.y, w.z, w.w};
        SIMT_UNROLL
        for (int k = 0; k < 8; ++k) random[8 * q + k] = word[k / 2] >> (k % 2 * 16);
      }
    } else {
      static_assert(V == 1);
      const Random4 w = bits(element / 8);
      const int k = int(element % 8);
      random[0] = (k < 2 ? w.x : k < 4 ? w.y : k < 6 ? w.z : w.w) >> (k % 2 * 16);
    }
  }
  template <int V> SIMT_DEV void operator()(Width<V>, int64_t i) const {
    float g[V], w[V], m[V], v[V];
    load<V>(g, r.gradient + i);
    load<V>(w, r.master + i);
    load<V>(m, r.moment1 + i);
    load<V>(v, r.moment2 + i);
    const int64_t left = r.a.decay_to - first - i;
    const int decaying = left < 0 ? 0 : left < V ? int(left) : V;
    for (int k = 0; k < V; ++k) {
      g[k] *= scale;
      m[k] = r.a.beta1 * m[k] + (1.0f - r.a.beta1) * g[k];
      v[k] = r.a.beta2 * v[k] + (1.0f - r.a.beta2) * g[k] * g[k];
      w[k] -= rate * (m[k] * moment1_scale / (sqrtf(v[k] * moment2_scale) + r.a.eps) +
                      (k < decaying ? r.a.decay : 0.0f) * w[k]);
    }
    store<V>(r.moment1 + i, m);
    store<V>(r.moment2 + i, v);
    store<V>(r.master + i, w);
    if constexpr (Stochastic) {
      uint32_t bits[V];
      random(bits, first + i);
      for (int k = 0; k < V; ++k) w[k] = float(to_bf16_stochastic(w[k], bits[k])); // the store below keeps it
    }
    if constexpr (sizeof(T) == 2) store<V>(r.weights + i, w);
  }
};

template <int V, class T, bool Stochastic> __global__ void __launch_bounds__(kEachBlock)
    adamw_kernel(const AdamWRange<T> range, const StepState* __restrict__ state, const float* __restrict__ scalars,
                 int64_t n, int64_t from, int64_t to) {
  const float scale = scalars[kGradientScale];
  if (scale == 0.0f) return;
  const StepState s = *state;
  const AdamWStep<T, Stochastic> step{range,
                                      scale,
                                      s.learning_rate,
                                      s.moment1_scale,
                                      s.moment2_scale,
                                      range.a.first + s.shard_rank * n,
                                      uint32_t(s.tensor_rank),
                                      uint32_t(s.step),
                                      uint32_t(s.seed),
                                      uint32_t(s.seed >> 32)};
  const int64_t begin = from + blockIdx.x * kEachChunk<V>;
  each<kEachBlock, V>(begin, begin + kEachChunk<V> < to ? begin + kEachChunk<V> : to, step);
}

/// The host's V is a tile whose squares are summed first, so that no sum is long.
template <int Block, int V> SIMT_DEV float sum_of_squares(const float* x, int64_t begin, int64_t end) {
  float total = 0.0f;
  for (int64_t i = begin + threadIdx.x * V; i < end; i += Block * V) {
    float sum = 0.0f;
    if (!kIsHost && i + V <= end) {
      float v[V];
      load<V>(v, x + i);
      for (int k = 0; k < V; ++k) sum += v[k] * v[k];
    } else {
      const int count = i + V <= end ? V : int(end - i);
      for (int k = 0; k < count; ++k) sum += x[i + k] * x[i + k];
    }
    total += sum;
  }
  return total;
}

template <int Block, int V> __global__ void __launch_bounds__(Block)
    squared_norm_kernel(float* __restrict__ blocks, const float* __restrict__ x, const StepState* __restrict__ state,
                        int64_t n, SharedRange shared) {
  const int64_t begin = blockIdx.x * kNormBlock, end = begin + kNormBlock < n ? begin + kNormBlock : n;
  const auto inside = [=](int64_t from) {
    from -= state->shard_rank * n;
    return from < begin ? begin : from > end ? end : from;
  };
  const int64_t copied = inside(shared.copied_from), whole = inside(shared.whole_from);
  float total = sum_of_squares<Block, V>(x, begin, copied);
  constexpr int kBehind = kIsHost ? V : 1; // these begin anywhere
  if (copied < whole) total += sum_of_squares<Block, kBehind>(x, copied, whole) / float(shared.copies);
  if (whole < end) total += sum_of_squares<Block, kBehind>(x, whole, end) / float(shared.whole_by);
  total = block_sum<Block>(total);
  if (threadIdx.x == 0) blocks[blockIdx.x] = total;
}

/// One block; in double, for there are very many.
template <int Block> __global__ void __launch_bounds__(Block)
    norm_total_kernel(float* __restrict__ out, const float* __restrict__ blocks, int64_t columns, int64_t stride,
                      int64_t count) {
  double total = 0.0;
  for (int64_t i = threadIdx.x; i < count; i += Block) total += double(blocks[i / columns * stride + i % columns]);
  const float sum = block_sum<Block>(float(total));
  if (threadIdx.x == 0) *out = sum;
}

__global__ void __launch_bounds__(1) finish_gradients_kernel(float* __restrict__ scalars, float capacity, float clip) {
  const float count = scalars[kTokenCount];
  float scale = count > 0.0f ? capacity / count : 0.0f;
  const float norm2 = scalars[kGradientNorm2] * scale * scale, norm = sqrtf(norm2);
  scalars[kGradientNorm2] = norm2;
  if (clip > 0.0f && !(norm <= clip)) scale *= clip / norm; // NaN stays NaN
  scalars[kGradientScale] = scale;
}

static void launch_adamw(const Op& op, const LaunchContext& context) {
  const auto a = op.get<AdamWAttributes>();
  const int64_t n = op[0].size();
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    T* weights = op[0].data<T>();
    float* master = op.has(1) ? op[1].data<float>() : op[0].data<float>();
    const AdamWRange<T> r{weights, master, op[2].data<float>(), op[3].data<float>(), op[4].data<float>(), a};
    const auto go = [&](auto width, int64_t from, int64_t to, auto stochastic) {
      constexpr int V = decltype(width)::value;
      if (from < to)
        launch(context, dim3(unsigned(ceil_div(to - from, kEachChunk<V>))), dim3(kEachBlock), 0,
               &adamw_kernel<V, T, decltype(stochastic)::value>, r, op[5].data<StepState>(), op[6].data<float>(), n,
               from, to);
    };
    const auto is_wide = [&](int64_t i) {
      return wide(weights + i, master + i, r.moment1 + i, r.moment2 + i, r.gradient + i);
    };
    if (sizeof(T) == 2 && a.stochastic) { // what comes before the first whole group of eight goes one by one
      constexpr int V = kIsHost ? 128 : 8;
      const int64_t to_group = (8 - a.first % 8) % 8, head = to_group < n ? to_group : n;
      go(Width<1>{}, 0, head, std::true_type{});
      is_wide(head) ? go(Width<V>{}, head, n, std::true_type{}) : go(Width<1>{}, head, n, std::true_type{});
    } else {
      constexpr int V = kIsHost ? 1 : 8;
      is_wide(0) ? go(Width<V>{}, 0, n, std::false_type{}) : go(Width<1>{}, 0, n, std::false_type{});
    }
  });
}

static void launch_squared_norm(const Op& op, const LaunchContext& context) {
  const int64_t n = op[1].size();
  if (n == 0) return;
  constexpr int B = kBlock<256>;
  constexpr int V = kVector<float, 1024>;
  const float* x = op[1].data<float>();
  launch(context, dim3(unsigned(ceil_div(n, kNormBlock))), dim3(B), 0,
         wide(x) ? &squared_norm_kernel<B, V> : &squared_norm_kernel<B, 1>, op[0].data<float>(), x,
         op[2].data<StepState>(), n, op.get<SharedRange>());
}

static void launch_norm_total(const Op& op, const LaunchContext& context) {
  constexpr int B = kBlock<512>;
  launch(context, dim3(1), dim3(B), 0, &norm_total_kernel<B>, op[0].data<float>(), op[1].data<float>(), op[1].dim[1],
         op[1].stride[0], op.get<NormTotalAttributes>().count);
}

static void launch_finish_gradients(const Op& op, const LaunchContext& context) {
  const auto a = op.get<FinishAttributes>();
  launch(context, dim3(1), dim3(1), 0, &finish_gradients_kernel, op[0].data<float>(), a.capacity, a.clip);
}

REGISTER_LAUNCH("adamw", launch_adamw);
REGISTER_LAUNCH("squared_norm", launch_squared_norm);
REGISTER_LAUNCH("norm_total", launch_norm_total);
REGISTER_LAUNCH("finish_gradients", launch_finish_gradients);

} // namespace SIMT_NS
} // namespace triax
