// Plain operations on whole tensors. Bound by memory, but for normal_fill.
#include "kernels/each.h"
#include "kernels/elementwise_shape.h"
#include "kernels/exp.h"
#include "kernels/partial_sums.h"

namespace triax {
inline namespace SIMT_NS {

template <class T> struct Fill {
  T* y;
  T value;
  template <int V> SIMT_DEV void operator()(Width<V>, int64_t i) const {
    SIMT_UNROLL
    for (int k = 0; k < V; ++k) y[i + k] = value;
  }
};

template <class T> struct Add {
  T* y;
  const T *a, *b;
  template <int V> SIMT_DEV void operator()(Width<V>, int64_t i) const {
    float v[V], w[V];
    load<V>(v, a + i);
    load<V>(w, b + i);
    for (int k = 0; k < V; ++k) v[k] += w[k];
    store<V>(y + i, v);
  }
};

/// Sums as a binary counter counts: level l holds the sum of 2^l groups of kSumGroup pieces that still waits for its
/// neighbour.
template <class T> struct SumPieces {
  T* out;
  const T* pieces;
  int64_t count, n;
  bool accumulate;
  /// v = the tree over pieces [first, first + Count), Count a power of two.
  template <int Count, int V> SIMT_DEV void tree(float (&v)[V], int64_t first, int64_t i) const {
    if constexpr (Count == 1) {
      load<V>(v, pieces + first * n + i);
    } else {
      float w[V];
      tree<Count / 2>(v, first, i);
      tree<Count / 2>(w, first + Count / 2, i);
      for (int k = 0; k < V; ++k) v[k] += w[k];
    }
  }
  template <int V> SIMT_DEV void operator()(Width<V>, int64_t i) const {
    float sum[V] = {}, w[V];
    bool first = true;
    const auto put_before = [&](const float* shorter) {
      for (int k = 0; k < V; ++k) sum[k] = first ? shorter[k] : shorter[k] + sum[k];
      first = false;
    };
    if (count & 1) tree<1>(w, count - 1, i), put_before(w);
    if (count & 2) tree<2>(w, count / 4 * 4, i), put_before(w);
    if (count & 4) tree<4>(w, count / 8 * 8, i), put_before(w);
    float waiting[kSumLevels][V];
    const int64_t groups = count / kSumGroup;
    for (int64_t r = 0; r < groups; ++r) {
      tree<kSumGroup>(w, r * kSumGroup, i);
      int level = 0;
      for (; r >> level & 1; ++level)
        for (int k = 0; k < V; ++k) w[k] = waiting[level][k] + w[k];
      for (int k = 0; k < V; ++k) waiting[level][k] = w[k];
    }
    for (int level = 0; groups >> level; ++level)
      if (groups >> level & 1) put_before(waiting[level]);
    if (accumulate) {
      load<V>(w, out + i);
      for (int k = 0; k < V; ++k) sum[k] = w[k] + sum[k];
    }
    store<V>(out + i, sum);
  }
};

template <int Block, int V, class T> __global__ void __launch_bounds__(Block)
    add_bias_kernel(T* __restrict__ y, const T* __restrict__ bias, int64_t C) {
  T* row = y + blockIdx.x * C;
  each<Block, V>(0, C, [=](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float v[W], b[W];
    load<W>(v, row + i);
    load<W>(b, bias + i);
    for (int k = 0; k < W; ++k) v[k] += b[k];
    store<W>(row + i, v);
  });
}

template <class To, class From> struct Cast {
  To* y;
  const From* x;
  template <int V> SIMT_DEV void operator()(Width<V>, int64_t i) const {
    float v[V];
    load<V>(v, x + i);
    store<V>(y + i, v);
  }
};

/// log for positive normal numbers (Cephes logf).
SIMT_FN float log_positive(float x) {
  const uint32_t u = bits_of(x);
  const int32_t e = int32_t(u - 0x3f3504f3u) >> 23; // x = m * 2^e, m in [sqrt(1/2), sqrt(2))
  const float f = float_of(u - (uint32_t(e) << 23)) - 1.0f, z = f * f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  return f + (p * f * z - 0.5f * z) + float(e) * 0.69314718f;
}

SIMT_FN float with_sign(float x, uint32_t sign) { return float_of(bits_of(x) ^ (sign & 0x80000000u)); }

/// Two independent normal numbers (Box and Muller 1958); the largest is 6.8. The angle's quadrant is split off as an
/// integer; sine and cosine of what is left are Cephes'.
SIMT_FN void normal_pair(uint32_t radius, uint32_t angle, float& a, float& b) {
  const float r = sqrtf(-2.0f * log_positive((float(radius) + 0.5f) * 0x1p-32f));
  const uint32_t quadrant = (angle + 0x20000000u) >> 30;
  const float t = float(int32_t(angle - (quadrant << 30))) * 1.46291808e-9f; // pi / 2^31
  const float z = t * t;
  const float sine = t + t * z * (-1.6666654611e-1f + z * (8.3321608736e-3f - z * 1.9515295891e-4f));
  const float cosine =
      1.0f - 0.5f * z + z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
  const bool odd = quadrant & 1;
  a = r * with_sign(odd ? sine : cosine, (quadrant + 1) << 30);
  b = r * with_sign(odd ? cosine : sine, quadrant << 30);
}

/// Elements whose numbers are made together, from whole groups of four; numbered by the global element, and always made
/// by the same instructions, so that where a range is cut changes no bit.
constexpr int kNormalTile = kIsHost ? 64 : 4;
constexpr int64_t kNormalTiles = kIsHost ? 256 : 4; ///< of a thread

template <int Block, class T> __global__ void __launch_bounds__(Block)
    normal_fill_kernel(T* __restrict__ all, NormalAttributes a, int64_t n, int64_t blocks) {
  const int64_t row = blockIdx.x / blocks, block = blockIdx.x % blocks;
  T* y = all + row * n;
  a.first += row * a.pitch;
  const uint32_t key0 = uint32_t(a.seed), key1 = uint32_t(a.seed >> 32);
  const int64_t first = a.first / kNormalTile, last = ceil_div(a.first + n, kNormalTile);
  const int64_t begin = first + block * Block * kNormalTiles;
  const int64_t end = begin + Block * kNormalTiles < last ? begin + Block * kNormalTiles : last;
  for (int64_t tile = begin + threadIdx.x; tile < end; tile += Block) {
    float v[kNormalTile];
    for (int q = 0; q < kNormalTile / 4; ++q) {
      const int64_t group = tile * (kNormalTile / 4) + q;
      const Random4 r = philox(uint32_t(group), uint32_t(group >> 32), a.stream, 0x6e6f726du, key0, key1); // "norm"
      normal_pair(r.x, r.y, v[4 * q], v[4 * q + 1]);
      normal_pair(r.z, r.w, v[4 * q + 2], v[4 * q + 3]);
    }
    const int64_t at = tile * kNormalTile - a.first; // of v[0] in y
    const int from = at < 0 ? int(-at) : 0, to_k = at + kNormalTile > n ? int(n - at) : kNormalTile;
    for (int k = from; k < to_k; ++k) y[at + k] = to<T>(a.std * v[k]);
  }
}

/// Block (p, t) adds the rows of chunk p in columns [t * Block * V, (t + 1) * Block * V) into row p of `partial`.
template <int Block, int V, class T> __global__ void __launch_bounds__(Block)
    column_sum_kernel(float* __restrict__ partial, const T* __restrict__ x, int64_t stride, int64_t rows, int64_t C) {
  const int64_t chunk = ceil_div(rows, gridDim.x), first = blockIdx.x * chunk;
  const int64_t last = first + chunk < rows ? first + chunk : rows;
  const int64_t column = (int64_t(blockIdx.y) * Block + threadIdx.x) * V;
  if (column >= C) return;
  sum_rows<V>(partial + blockIdx.x * C + column, x + column, C - column, last - first,
              [=](int64_t n) { return (first + n) * stride; });
}

static void launch_fill(const Op& op, const LaunchContext& context) {
  const float value = op.get<FillAttributes>().value;
  const auto go = [&](auto element) {
    using T = decltype(element);
    launch_each<float>(context, 0, op[0].size(), wide(op[0].data<T>()), Fill<T>{op[0].data<T>(), element});
  };
  if (op[0].dtype == Dtype::i32)
    go(int32_t(value));
  else
    with_float_type(op[0].dtype, [&](auto element) { go(to<decltype(element)>(value)); });
}

static void launch_add(const Op& op, const LaunchContext& context) {
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    const Add<T> f{op[0].data<T>(), op[1].data<T>(), op[2].data<T>()};
    launch_each<T>(context, 0, op[0].size(), wide(f.y, f.a, f.b), f);
  });
}

static void launch_sum_pieces(const Op& op, const LaunchContext& context) {
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    const int64_t count = op[1].dim[0], n = op[1].dim[1];
    const SumPieces<T> f{op[0].data<T>(), op[1].data<T>(), count, n, op.get<SumAttributes>().accumulate != 0};
    const bool whole = kIsHost || n * int64_t(sizeof(T)) % 16 == 0; // every piece begins where vectors may
    launch_each<T>(context, 0, n, whole && wide(f.out, f.pieces), f);
  });
}

static void launch_add_bias(const Op& op, const LaunchContext& context) {
  const int64_t rows = op[0].dim[0], C = op[0].dim[1];
  if (rows == 0 || C == 0) return;
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int B = kBlock<128>, V = kVector<T, 64>;
    T *y = op[0].data<T>(), *bias = op[1].data<T>();
    launch(context, dim3(unsigned(rows)), dim3(B), 0,
           kIsHost || (C % V == 0 && wide(y, bias)) ? &add_bias_kernel<B, V, T> : &add_bias_kernel<B, 1, T>, y, bias,
           C);
  });
}

static void launch_cast(const Op& op, const LaunchContext& context) {
  const auto go = [&](const auto& f) { launch_each<float>(context, 0, op[0].size(), wide(f.y, f.x), f); };
  if (op[0].dtype == Dtype::f32)
    go(Cast<float, bf16>{op[0].data<float>(), op[1].data<bf16>()});
  else
    go(Cast<bf16, float>{op[0].data<bf16>(), op[1].data<float>()});
}

static void launch_normal_fill(const Op& op, const LaunchContext& context) {
  const auto a = op.get<NormalAttributes>();
  const int64_t rows = a.pitch ? op[0].dim[0] : 1, n = op[0].size() / (rows ? rows : 1);
  if (rows == 0 || n == 0) return;
  constexpr int B = kBlock<256>;
  const int64_t blocks = ceil_div(ceil_div(n, kNormalTile) + 1, B * kNormalTiles); // one more tile where it is cut
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    launch(context, dim3(unsigned(rows * blocks)), dim3(B), 0, &normal_fill_kernel<B, T>, op[0].data<T>(), a, n,
           blocks);
  });
}

static void launch_column_sum(const Op& op, const LaunchContext& context) {
  const int64_t rows = op[1].dim[0], C = op[1].dim[1], stride = op[1].stride[0];
  const int64_t partials = partial_sums(kIsHost, rows);
  float *out = op[0].data<float>(), *partial = context.scratch.data<float>();
  if (rows == 0 || C == 0) return;
  constexpr int B = kBlock<128>;
  const auto tiles = [=](int64_t width) { return unsigned(ceil_div(C, B * width)); };
  with_float_type(op[1].dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int V = kVector<T, 2048>;
    const T* x = op[1].data<T>();
    if (kIsHost || (C % V == 0 && stride % V == 0 && wide(x)))
      launch(context, dim3(unsigned(partials), tiles(V)), dim3(B), 0, &column_sum_kernel<B, V, T>, partial, x, stride,
             rows, C);
    else
      launch(context, dim3(unsigned(partials), tiles(1)), dim3(B), 0, &column_sum_kernel<B, 1, T>, partial, x, stride,
             rows, C);
  });
  add_partials(context, out, partial, partials, C);
}

REGISTER_LAUNCH("fill", launch_fill);
REGISTER_LAUNCH("add", launch_add);
REGISTER_LAUNCH("cast", launch_cast);
REGISTER_LAUNCH("sum_pieces", launch_sum_pieces);
REGISTER_LAUNCH("add_bias", launch_add_bias);
REGISTER_LAUNCH("normal_fill", launch_normal_fill);
REGISTER_LAUNCH("column_sum", launch_column_sum);

} // namespace SIMT_NS
} // namespace triax
