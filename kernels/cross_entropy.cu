// Softmax cross-entropy, one row per block: the row's maximum and sum in one pass, tile by tile (Milakov and Gimelshein
// 2018), the gradient in a second. Bound by memory on the GPU and by exp on the host.
#include "kernels/cross_entropy_shape.h"
#include "kernels/each.h"
#include "kernels/exp.h"
#include "kernels/step_state.h"

namespace triax {
inline namespace SIMT_NS {

constexpr float kLowest = -3.402823466e38f; // finite, so that the difference to a logit of -infinity is no NaN

/// sum = sum over what was added of exp(value - maximum).
struct Softmax {
  float maximum = kLowest, sum = 0.0f;
  template <int V> SIMT_DEV void add(const float (&v)[V]) {
    float tile = v[0];
    SIMT_SIMD(reduction(max : tile))
    for (int k = 0; k < V; ++k) tile = v[k] > tile ? v[k] : tile;
    if (tile > maximum) {
      sum *= exp_below(maximum - tile);
      maximum = tile;
    }
    float added = 0.0f;
    for (int k = 0; k < V; ++k) added += exp_below(v[k] - maximum);
    sum += added;
  }
};

/// This thread's share of a row's `classes` logits.
template <int Block, int V, class T> SIMT_DEV Softmax softmax_of(const T* z, int64_t classes) {
  Softmax own;
  for (int64_t i = threadIdx.x * V; i < classes; i += Block * V) {
    float v[V];
    if (i + V <= classes)
      load<V>(v, z + i);
    else
      for (int k = 0; k < V; ++k) v[k] = i + k < classes ? float(z[i + k]) : -INFINITY;
    own.add(v);
  }
  return own;
}

/// z[i] = exp(z[i] - maximum) * factor for i in [0, classes).
template <int Block, int V, class T> SIMT_DEV void scaled_exp(T* z, int64_t classes, float maximum, float factor) {
  each<Block, kIsHost ? 1 : V>(0, classes, [=](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float v[W];
    load<W>(v, z + i);
    for (int k = 0; k < W; ++k) v[k] = exp_below(v[k] - maximum) * factor;
    store<W>(z + i, v);
  });
}

/// Columns [first, first + count) of all classes are this rank's.
struct ClassPart {
  int64_t first, count;
  SIMT_DEV ClassPart(const StepState* state, int64_t columns, int64_t classes)
      : first(state->tensor_rank * columns), count(classes - first) {
    count = count < 0 ? 0 : count > columns ? columns : count;
  }
  SIMT_DEV bool has(int64_t label) const { return label >= first && label < first + count; }
};

template <int Block, int V, class T> __global__ void __launch_bounds__(Block)
    softmax_statistics_kernel(float* __restrict__ statistics, const T* __restrict__ logits,
                              const int32_t* __restrict__ labels, const StepState* __restrict__ state, int64_t stride,
                              int64_t columns, int64_t classes) {
  const int64_t row = blockIdx.x, label = labels[row];
  const T* z = logits + row * stride;
  const ClassPart part(state, columns, classes);
  const Softmax own = softmax_of<Block, V>(z, part.count);
  const float maximum = block_max<Block>(own.maximum);
  const float sum = block_sum<Block>(own.sum * exp_below(own.maximum - maximum));
  if (threadIdx.x != 0) return;
  statistics[3 * row] = maximum;
  statistics[3 * row + 1] = part.count > 0 ? sum : 0.0f;
  statistics[3 * row + 2] = part.has(label) ? float(z[label - part.first]) : kLowest;
}

template <int Block, int V, class T> __global__ void __launch_bounds__(Block)
    cross_entropy_parts_kernel(float* __restrict__ losses, T* __restrict__ logits, const int32_t* __restrict__ labels,
                               const float* __restrict__ statistics, const StepState* __restrict__ state,
                               int64_t stride, int64_t columns, int64_t ranks, PartsAttributes a) {
  const int64_t row = blockIdx.x, label = labels[row];
  T* z = logits + row * stride;
  const ClassPart part(state, columns, a.classes);
  const int64_t rows = gridDim.x;
  float maximum = kLowest, sum = 0.0f, chosen = kLowest;
  for (int64_t r = 0; r < ranks; ++r) {
    const float* of = statistics + 3 * (r * rows + row);
    maximum = of[0] > maximum ? of[0] : maximum;
    chosen = of[2] > chosen ? of[2] : chosen;
  }
  for (int64_t r = 0; r < ranks; ++r) {
    const float* of = statistics + 3 * (r * rows + row);
    sum += of[1] * exp_below(of[0] - maximum);
  }
  const bool counts = label != -1, known = label >= 0 && label < a.classes;
  if (threadIdx.x == 0)
    losses[row] = counts ? float(double(logf(sum)) + (double(maximum) - double(known ? chosen : NAN))) : 0.0f;
  if (!a.backward) return;
  const float own = counts && part.has(label) ? float(z[label - part.first]) : 0.0f;
  __syncthreads(); // all have read it
  if (counts) scaled_exp<Block, V>(z, part.count, maximum, a.scale / sum);
  for (int64_t i = (counts ? part.count : 0) + threadIdx.x; i < columns; i += Block) z[i] = to<T>(0.0f);
  __syncthreads(); // z[label] is written
  if (threadIdx.x == 0 && counts && part.has(label))
    z[label - part.first] = to<T>(exp_below(own - maximum) * (a.scale / sum) - a.scale);
}

template <int Block, int V, class T> __global__ void __launch_bounds__(Block)
    cross_entropy_kernel(float* __restrict__ losses, T* __restrict__ logits, const int32_t* __restrict__ labels,
                         int64_t stride, int64_t classes, float scale, bool backward) {
  const int64_t row = blockIdx.x, label = labels[row];
  T* z = logits + row * stride;
  if (label == -1) { // the whole block
    if (threadIdx.x == 0) losses[row] = 0.0f;
    if (backward)
      for (int64_t i = threadIdx.x; i < classes; i += Block) z[i] = to<T>(0.0f);
    return;
  }
  const Softmax own = softmax_of<Block, V>(z, classes);
  const float maximum = block_max<Block>(own.maximum);
  const float sum = block_sum<Block>(own.sum * exp_below(own.maximum - maximum));
  const bool known = label >= 0 && label < classes;
  const float chosen = known ? float(z[label]) : NAN; // a label that is no class makes the loss NaN
  // In double, for the compiler may add in another order, and maximum and chosen may be large.
  if (threadIdx.x == 0) losses[row] = float(double(logf(sum)) + (double(maximum) - double(chosen)));
  if (!backward) return;
  __syncthreads(); // all have read z[label]
  const float factor = scale / sum;
  scaled_exp<Block, V>(z, classes, maximum, factor);
  __syncthreads(); // z[label] is written
  if (threadIdx.x == 0 && known) z[label] = to<T>(exp_below(chosen - maximum) * factor - scale);
}

/// One block; in double, for the sums are long.
template <int Block> __global__ void __launch_bounds__(Block)
    sum_losses_kernel(float* __restrict__ scalars, const float* __restrict__ losses, const int32_t* __restrict__ labels,
                      int64_t n) {
  double total = 0.0;
  int64_t count = 0;
  for (int64_t i = threadIdx.x; i < n; i += Block) {
    total += double(losses[i]);
    count += labels[i] != -1;
  }
  const float sum = block_sum<Block>(float(total)), counted = block_sum<Block>(float(count));
  if (threadIdx.x == 0) {
    scalars[kLossSum] += sum;
    scalars[kTokenCount] += counted;
  }
}

constexpr int kRowBlock = kBlock<512>; ///< threads of a row of logits

/// Calls go(logits, width), the width that of vectors where all rows of z[rows, columns] may be read by them.
template <class Go> void with_logits(const Tensor& z, const Go& go) {
  with_float_type(z.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int V = kVector<T, 256>;
    T* const logits = z.data<T>();
    kIsHost || (z.stride[0] % V == 0 && wide(logits)) ? go(logits, Width<V>{}) : go(logits, Width<1>{});
  });
}

static void launch_cross_entropy(const Op& op, const LaunchContext& context) {
  const auto a = op.get<CrossEntropyAttributes>();
  const int64_t rows = op[1].dim[0], classes = op[1].dim[1], stride = op[1].stride[0];
  if (rows == 0) return;
  with_logits(op[1], [&](auto* logits, auto width) {
    launch(context, dim3(unsigned(rows)), dim3(kRowBlock), 0,
           &cross_entropy_kernel<kRowBlock, decltype(width)::value, std::remove_pointer_t<decltype(logits)>>,
           op[0].data<float>(), logits, op[2].data<int32_t>(), stride, classes, a.scale, a.backward != 0);
  });
}

static void launch_softmax_statistics(const Op& op, const LaunchContext& context) {
  const int64_t rows = op[1].dim[0], columns = op[1].dim[1], stride = op[1].stride[0];
  if (rows == 0) return;
  with_logits(op[1], [&](auto* logits, auto width) {
    launch(context, dim3(unsigned(rows)), dim3(kRowBlock), 0,
           &softmax_statistics_kernel<kRowBlock, decltype(width)::value, std::remove_pointer_t<decltype(logits)>>,
           op[0].data<float>(), logits, op[2].data<int32_t>(), op[3].data<StepState>(), stride, columns,
           op.get<PartsAttributes>().classes);
  });
}

static void launch_cross_entropy_parts(const Op& op, const LaunchContext& context) {
  const int64_t rows = op[1].dim[0], columns = op[1].dim[1], stride = op[1].stride[0];
  if (rows == 0) return;
  with_logits(op[1], [&](auto* logits, auto width) {
    launch(context, dim3(unsigned(rows)), dim3(kRowBlock), 0,
           &cross_entropy_parts_kernel<kRowBlock, decltype(width)::value, std::remove_pointer_t<decltype(logits)>>,
           op[0].data<float>(), logits, op[2].data<int32_t>(), op[3].data<float>(), op[4].data<StepState>(), stride,
           columns, op[3].dim[0], op.get<PartsAttributes>());
  });
}

static void launch_sum_losses(const Op& op, const LaunchContext& context) {
  constexpr int B = kBlock<1024>;
  launch(context, dim3(1), dim3(B), 0, &sum_losses_kernel<B>, op[0].data<float>(), op[1].data<float>(),
         op[2].data<int32_t>(), op[1].size());
}

REGISTER_LAUNCH("cross_entropy", launch_cross_entropy);
REGISTER_LAUNCH("softmax_statistics", launch_softmax_statistics);
REGISTER_LAUNCH("cross_entropy_parts", launch_cross_entropy_parts);
REGISTER_LAUNCH("sum_losses", launch_sum_losses);

} // namespace SIMT_NS
} // namespace triax
