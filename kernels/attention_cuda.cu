// Causal attention on the GPU: flash attention where it takes the operands (attention_flash.h), otherwise without
// tensor cores: correct, deterministic and for any dtype and head width up to 256. That is bound by shared memory and
// f32 arithmetic. The host has its own (host/attention.cpp), by blocked products. All keep the same statistics, so that
// one may run forward and another backward.
//
// Every kernel here has one form. A block of four warps keeps a tile of rows in shared memory (queries, or keys and
// values) and streams tiles of 32 columns past it (keys and values, or queries). A warp owns kRows rows of the tile; in
// the scores a lane is a column, in the sums over columns a lane is every 32nd element of the head. Scores never leave
// the block, and each sum has one owner, so nothing is added atomically.
#include "kernels/attention_flash_dkv.h"
#include "kernels/attention_flash_forward.h"

namespace triax {
inline namespace SIMT_NS {
namespace {

constexpr int kLanes = 32, kWarps = 4, kThreads = kWarps * kLanes;
constexpr unsigned kAll = 0xffffffffu;

/// Sizes for heads of at most Width elements.
template <int Width> struct Tile {
  static constexpr int kRows = Width <= 128 ? 8 : 4; ///< rows of a warp
  static constexpr int kHeight = kWarps * kRows;
  static constexpr int kSlices = Width / kLanes; ///< elements of a row that a lane sums
  static constexpr int kPitch = Width + 4;       ///< of streamed tiles: 32 lanes that each read a row meet no conflict
  static constexpr int kResident = kHeight * Width, kStreamed = kLanes * kPitch, kWeights = kHeight * kLanes;
};
/// The most that an sm_89 or sm_120 gives to a block.
constexpr int kSharedLimit = 99 * 1024;
template <int Width> constexpr size_t shared_bytes(int resident) {
  return sizeof(float) * size_t(resident * Tile<Width>::kResident + 2 * Tile<Width>::kStreamed + Tile<Width>::kWeights);
}
static_assert(shared_bytes<256>(2) <= kSharedLimit && shared_bytes<128>(2) <= kSharedLimit);

/// Everything a kernel reads and writes; the backward pass fills all of it.
template <class T> struct Arguments {
  const T *q, *kv;
  T* out; ///< read by the backward pass
  float* lse;
  const int* start;
  const StepState* state;
  const T* dout;
  T *dq, *dkv;
  float* delta;                                                          ///< [B, H, T], rows of dout times rows of out
  int64_t q_pitch, kv_pitch, out_pitch, dq_pitch, dkv_pitch, dout_pitch; ///< elements from a position to the next
  int length, H, G, D, window, ring_ranks, ring_step;                    ///< length: T of the sequences
  float scale;
  SIMT_DEV AttentionContext context() const { return {state, ring_ranks, ring_step, length}; }
  SIMT_DEV const T* queries(int64_t sequence, int h) const { return q + sequence * q_pitch + h * D; }
  SIMT_DEV const T* keys(int64_t sequence, int g) const { return kv + sequence * kv_pitch + g * D; }
  SIMT_DEV const T* values(int64_t sequence, int g) const { return keys(sequence, G + g); }
};

/// Rows [first, first + count) of a head, as floats; 0 beyond the sequence and beyond the head's width.
template <int Width, int Pitch, class T>
SIMT_DEV void load_tile(float* tile, const T* head, int64_t pitch, int first, int count, int length, int D) {
  for (int i = threadIdx.x; i < count * Width; i += kThreads) {
    const int row = i / Width, d = i % Width;
    tile[row * Pitch + d] = first + row < length && d < D ? float(head[(first + row) * pitch + d]) : 0.0f;
  }
}

/// s[r] = the warp's row r times the lane's column.
template <int Width>
SIMT_DEV void scores(float (&s)[Tile<Width>::kRows], const float* rows, const float* column, int D) {
  constexpr int R = Tile<Width>::kRows;
  SIMT_UNROLL
  for (int r = 0; r < R; ++r) s[r] = 0.0f;
  for (int d = 0; d < D; d += 4) {
    const float4 y = *reinterpret_cast<const float4*>(column + d);
    SIMT_UNROLL
    for (int r = 0; r < R; ++r) {
      const float4 x = *reinterpret_cast<const float4*>(rows + r * Width + d);
      s[r] += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
    }
  }
}

/// acc[r][c] += sum over the columns of weights[r][column] times element lane + 32 c of the column.
template <int Width> SIMT_DEV void add_columns(float (&acc)[Tile<Width>::kRows][Tile<Width>::kSlices],
                                               const float* weights, const float* columns, int lane) {
  constexpr int R = Tile<Width>::kRows, S = Tile<Width>::kSlices, P = Tile<Width>::kPitch;
  for (int j = 0; j < kLanes; j += 4) {
    float x[4][S];
    SIMT_UNROLL
    for (int i = 0; i < 4; ++i) {
      SIMT_UNROLL
      for (int c = 0; c < S; ++c) x[i][c] = columns[(j + i) * P + c * kLanes + lane];
    }
    SIMT_UNROLL
    for (int r = 0; r < R; ++r) {
      const float4 w = *reinterpret_cast<const float4*>(weights + r * kLanes + j);
      SIMT_UNROLL
      for (int c = 0; c < S; ++c) acc[r][c] += w.x * x[0][c] + w.y * x[1][c] + w.z * x[2][c] + w.w * x[3][c];
    }
  }
}

template <int Width, class T>
SIMT_DEV void store_row(T* row, const float (&acc)[Width / kLanes], float factor, int lane, int D) {
  SIMT_UNROLL
  for (int c = 0; c < Width / kLanes; ++c)
    if (const int d = c * kLanes + lane; d < D) row[d] = to<T>(acc[c] * factor);
}

SIMT_DEV float warp_sum(float v) {
  SIMT_UNROLL
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(kAll, v, o);
  return v;
}
SIMT_DEV float warp_max(float v) {
  SIMT_UNROLL
  for (int o = 16; o > 0; o >>= 1) v = Max{}(v, __shfl_xor_sync(kAll, v, o));
  return v;
}

/// The keys that row t of the sequence attends to; beyond the sequence none. `start` is that of the sequence.
template <class T>
SIMT_DEV AttentionKeys keys_of(const Arguments<T>& a, const AttentionContext& context, const int* start, int t) {
  return t < a.length ? attention_keys(context, start[t], t, a.window) : AttentionKeys{INT_MAX, -1};
}

/// From the first to the last key that any of the rows [first, first + count) attends to; the same in every warp.
template <class T> SIMT_DEV AttentionKeys keys_of_rows(const Arguments<T>& a, const AttentionContext& context,
                                                       const int* start, int first, int count, int lane) {
  return flash::keys_of_warp(lane < count ? keys_of(a, context, start, first + lane) : AttentionKeys{INT_MAX, -1});
}

/// One tile of queries of one head: online softmax (Milakov and Gimelshein 2018) over the tiles of keys.
template <int Width, class T> __global__ void __launch_bounds__(kThreads) attention_forward_kernel(Arguments<T> a) {
  using L = Tile<Width>;
  const int lane = threadIdx.x % kLanes, row = threadIdx.x / kLanes * L::kRows;
  float* q = dynamic_shared<float>();
  float* k = q + L::kResident;
  float* v = k + L::kStreamed;
  float* p = v + L::kStreamed + row * kLanes;
  const int h = blockIdx.y, b = blockIdx.z, g = h / (a.H / a.G);
  const int first = (gridDim.x - 1 - blockIdx.x) * L::kHeight; // the longest first
  const int last = (first + L::kHeight < a.length ? first + L::kHeight : a.length) - 1;
  const int64_t sequence = int64_t(b) * a.length;
  const int* start = a.start + sequence;
  const AttentionContext context = a.context();
  float acc[L::kRows][L::kSlices] = {}, largest[L::kRows], total[L::kRows];
  SIMT_UNROLL
  for (int r = 0; r < L::kRows; ++r) {
    largest[r] = -INFINITY;
    total[r] = 0.0f;
  }
  load_tile<Width, Width>(q, a.queries(sequence, h), a.q_pitch, first, L::kHeight, a.length, a.D);
  const AttentionKeys all = keys_of_rows(a, context, start, first, L::kHeight, lane);
  for (int at = all.first / kLanes * kLanes; at <= all.last; at += kLanes) {
    __syncthreads();
    load_tile<Width, L::kPitch>(k, a.keys(sequence, g), a.kv_pitch, at, kLanes, a.length, a.D);
    load_tile<Width, L::kPitch>(v, a.values(sequence, g), a.kv_pitch, at, kLanes, a.length, a.D);
    __syncthreads();
    float s[L::kRows];
    scores<Width>(s, q + row * Width, k + lane * L::kPitch, a.D);
    SIMT_UNROLL
    for (int r = 0; r < L::kRows; ++r) {
      const AttentionKeys own = keys_of(a, context, start, first + row + r); // kept, they would cost registers
      const bool seen = at + lane >= own.first && at + lane <= own.last;
      const float score = seen ? s[r] * a.scale : -INFINITY;
      const float larger = Max{}(largest[r], warp_max(score));
      const float weight = seen ? expf(score - larger) : 0.0f;
      const float kept = largest[r] == -INFINITY ? 0.0f : expf(largest[r] - larger);
      largest[r] = larger;
      total[r] = total[r] * kept + warp_sum(weight);
      SIMT_UNROLL
      for (int c = 0; c < L::kSlices; ++c) acc[r][c] *= kept;
      p[r * kLanes + lane] = weight;
    }
    __syncwarp();
    add_columns<Width>(acc, p, v, lane);
  }
  SIMT_UNROLL
  for (int r = 0; r < L::kRows; ++r) {
    const int t = first + row + r;
    if (t > last) continue;
    const bool any = total[r] > 0.0f;
    store_row<Width>(a.out + (int64_t(b) * a.length + t) * a.out_pitch + h * a.D, acc[r], any ? 1.0f / total[r] : 0.0f,
                     lane, a.D);
    if (lane == 0) a.lse[(int64_t(b) * a.H + h) * a.length + t] = any ? largest[r] + logf(total[r]) : -INFINITY;
  }
}

/// delta[b, h, t] = dout[t] out[t], a warp each (Dao et al. 2022, arXiv 2205.14135, B.2).
template <class T> __global__ void __launch_bounds__(kThreads) attention_delta_kernel(Arguments<T> a, int64_t count) {
  const int64_t n = int64_t(blockIdx.x) * kWarps + threadIdx.x / kLanes;
  if (n >= count) return;
  const int lane = threadIdx.x % kLanes;
  const int64_t t = n % a.length, h = n / a.length % a.H, at = n / a.length / a.H * a.length + t;
  const T* dout = a.dout + at * a.dout_pitch + h * a.D;
  const T* out = a.out + at * a.out_pitch + h * a.D;
  float sum = 0.0f;
  for (int d = lane; d < a.D; d += kLanes) sum += float(dout[d]) * float(out[d]);
  sum = warp_sum(sum);
  if (lane == 0) a.delta[n] = sum;
}

/// dq of one tile of queries of one head: ds = p (dout v - delta) scale, dq = ds k.
template <int Width, class T> __global__ void __launch_bounds__(kThreads) attention_dq_kernel(Arguments<T> a) {
  using L = Tile<Width>;
  const int lane = threadIdx.x % kLanes, row = threadIdx.x / kLanes * L::kRows;
  float* q = dynamic_shared<float>();
  float* dout = q + L::kResident;
  float* k = dout + L::kResident;
  float* v = k + L::kStreamed;
  float* weights = v + L::kStreamed + row * kLanes;
  const int h = blockIdx.y, b = blockIdx.z, g = h / (a.H / a.G);
  const int first = (gridDim.x - 1 - blockIdx.x) * L::kHeight;
  const int last = (first + L::kHeight < a.length ? first + L::kHeight : a.length) - 1;
  const int64_t sequence = int64_t(b) * a.length;
  const int* start = a.start + sequence;
  const AttentionContext context = a.context();
  const int64_t statistics = (int64_t(b) * a.H + h) * a.length;
  float acc[L::kRows][L::kSlices] = {}, lse[L::kRows], delta[L::kRows];
  SIMT_UNROLL
  for (int r = 0; r < L::kRows; ++r) {
    const int t = first + row + r;
    lse[r] = t <= last ? a.lse[statistics + t] : 0.0f;
    delta[r] = t <= last ? a.delta[statistics + t] : 0.0f;
  }
  load_tile<Width, Width>(q, a.queries(sequence, h), a.q_pitch, first, L::kHeight, a.length, a.D);
  load_tile<Width, Width>(dout, a.dout + sequence * a.dout_pitch + h * a.D, a.dout_pitch, first, L::kHeight, a.length,
                          a.D);
  const AttentionKeys all = keys_of_rows(a, context, start, first, L::kHeight, lane);
  for (int at = all.first / kLanes * kLanes; at <= all.last; at += kLanes) {
    __syncthreads();
    load_tile<Width, L::kPitch>(k, a.keys(sequence, g), a.kv_pitch, at, kLanes, a.length, a.D);
    load_tile<Width, L::kPitch>(v, a.values(sequence, g), a.kv_pitch, at, kLanes, a.length, a.D);
    __syncthreads();
    float s[L::kRows], dp[L::kRows];
    scores<Width>(s, q + row * Width, k + lane * L::kPitch, a.D);
    scores<Width>(dp, dout + row * Width, v + lane * L::kPitch, a.D);
    SIMT_UNROLL
    for (int r = 0; r < L::kRows; ++r) {
      const AttentionKeys own = keys_of(a, context, start, first + row + r);
      const bool seen = at + lane >= own.first && at + lane <= own.last;
      const float p = seen ? expf(s[r] * a.scale - lse[r]) : 0.0f;
      weights[r * kLanes + lane] = p * (dp[r] - delta[r]) * a.scale;
    }
    __syncwarp();
    add_columns<Width>(acc, weights, k, lane);
  }
  SIMT_UNROLL
  for (int r = 0; r < L::kRows; ++r)
    if (const int t = first + row + r; t <= last)
      store_row<Width>(a.dq + (sequence + t) * a.dq_pitch + h * a.D, acc[r], 1.0f, lane, a.D);
}

/// dk and dv of one tile of keys of one key/value head, over the query heads of its group and the queries behind it, in
/// this order: dk = ds q, dv = p dout.
template <int Width, class T> __global__ void __launch_bounds__(kThreads, 2) attention_dkv_kernel(Arguments<T> a) {
  using L = Tile<Width>;
  const int lane = threadIdx.x % kLanes, row = threadIdx.x / kLanes * L::kRows;
  float* k = dynamic_shared<float>();
  float* v = k + L::kResident;
  float* q = v + L::kResident;
  float* dout = q + L::kStreamed;
  float* weights = dout + L::kStreamed + row * kLanes;
  const int g = blockIdx.y, b = blockIdx.z, group = a.H / a.G;
  const int first = blockIdx.x * L::kHeight;
  const int last = (first + L::kHeight < a.length ? first + L::kHeight : a.length) - 1;
  const int64_t sequence = int64_t(b) * a.length;
  const AttentionContext context = a.context();
  float dk[L::kRows][L::kSlices] = {}, dv[L::kRows][L::kSlices] = {};
  load_tile<Width, Width>(k, a.keys(sequence, g), a.kv_pitch, first, L::kHeight, a.length, a.D);
  load_tile<Width, Width>(v, a.values(sequence, g), a.kv_pitch, first, L::kHeight, a.length, a.D);
  for (int h = g * group; h < (g + 1) * group; ++h) {
    const int64_t statistics = (int64_t(b) * a.H + h) * a.length;
    for (int at = context.is_own() ? first / kLanes * kLanes : 0; at < a.length; at += kLanes) {
      const int t = at + lane;
      const AttentionKeys own = keys_of(a, context, a.start + sequence, t);
      if (!__any_sync(kAll, own.first <= last && own.last >= first)) continue; // the same in every warp
      const float lse = t < a.length ? a.lse[statistics + t] : 0.0f;
      const float delta = t < a.length ? a.delta[statistics + t] : 0.0f;
      __syncthreads();
      load_tile<Width, L::kPitch>(q, a.queries(sequence, h), a.q_pitch, at, kLanes, a.length, a.D);
      load_tile<Width, L::kPitch>(dout, a.dout + sequence * a.dout_pitch + h * a.D, a.dout_pitch, at, kLanes, a.length,
                                  a.D);
      __syncthreads();
      float p[L::kRows], ds[L::kRows];
      scores<Width>(p, k + row * Width, q + lane * L::kPitch, a.D);
      scores<Width>(ds, v + row * Width, dout + lane * L::kPitch, a.D);
      SIMT_UNROLL
      for (int r = 0; r < L::kRows; ++r) {
        const int key = first + row + r;
        p[r] = key >= own.first && key <= own.last ? expf(p[r] * a.scale - lse) : 0.0f;
        ds[r] = p[r] * (ds[r] - delta) * a.scale;
        weights[r * kLanes + lane] = p[r];
      }
      __syncwarp();
      add_columns<Width>(dv, weights, dout, lane);
      __syncwarp(); // every lane has read p
      SIMT_UNROLL
      for (int r = 0; r < L::kRows; ++r) weights[r * kLanes + lane] = ds[r];
      __syncwarp();
      add_columns<Width>(dk, weights, q, lane);
    }
  }
  SIMT_UNROLL
  for (int r = 0; r < L::kRows; ++r) {
    const int t = first + row + r;
    if (t > last) continue;
    T* at = a.dkv + (sequence + t) * a.dkv_pitch + g * a.D;
    store_row<Width>(at, dk[r], 1.0f, lane, a.D);
    store_row<Width>(at + a.G * a.D, dv[r], 1.0f, lane, a.D);
  }
}

/// What the operands and attributes give of the kernels' arguments, plain or flash; T is the element.
template <class T, class A> A arguments_of(const Op& op, bool backward) {
  const auto s = op.get<AttentionAttributes>();
  const int out = backward ? 3 : 0, lse = out + 1, q = out + 2; // see attention_shape.h
  A a{};
  a.out = op[out].data<T>();
  a.lse = op[lse].data<float>();
  a.q = op[q].data<T>();
  a.kv = op[q + 1].data<T>();
  a.start = op[q + 2].data<int>();
  a.state = op.has(q + 3) ? op[q + 3].data<StepState>() : nullptr;
  const auto pitch = [&](int operand) { return decltype(a.q_pitch)(op[operand].stride[0]); };
  a.out_pitch = pitch(out);
  a.q_pitch = pitch(q);
  a.kv_pitch = pitch(q + 1);
  if (backward) {
    a.dq = op[0].data<T>();
    a.dkv = op[1].data<T>();
    a.dout = op[2].data<T>();
    a.dq_pitch = pitch(0);
    a.dkv_pitch = pitch(1);
    a.dout_pitch = pitch(2);
  }
  a.length = int(s.sequence);
  a.H = int(s.heads);
  a.G = int(s.kv_heads);
  a.window = s.window;
  a.ring_ranks = s.ring_ranks;
  a.ring_step = s.ring_step;
  a.scale = s.scale;
  return a;
}

template <class T> Arguments<T> plain_arguments(const Op& op, bool backward) {
  const auto s = op.get<AttentionAttributes>();
  DEMAND(s.head_width <= kAttentionMaxHeadWidth, "attention on a GPU takes heads of at most ", kAttentionMaxHeadWidth,
         " elements, these have ", s.head_width, "; raise the number of heads, or use --target cpu");
  auto a = arguments_of<T, Arguments<T>>(op, backward);
  a.D = int(s.head_width);
  return a;
}

/// Calls f with the width of tile that the head needs.
template <class F> void with_width(int64_t head_width, F&& f) {
  if (head_width <= 64)
    f(std::integral_constant<int, 64>{});
  else if (head_width <= 128)
    f(std::integral_constant<int, 128>{});
  else
    f(std::integral_constant<int, 256>{});
}

dim3 grid_of(int64_t length, int height, int64_t heads, int64_t batch) {
  return dim3(unsigned(ceil_div(length, height)), unsigned(heads), unsigned(batch));
}

void launch_plain_attention_forward(const Op& op, const LaunchContext& context) {
  if (op[0].size() == 0) return;
  const auto s = op.get<AttentionAttributes>();
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    const Arguments<T> a = plain_arguments<T>(op, false);
    with_width(s.head_width, [&](auto width) {
      constexpr int W = decltype(width)::value;
      launch(context, grid_of(s.sequence, Tile<W>::kHeight, s.heads, s.batch), dim3(kThreads), shared_bytes<W>(1),
             &attention_forward_kernel<W, T>, a);
    });
  });
}

void launch_plain_attention_backward(const Op& op, const LaunchContext& context) {
  if (op[0].size() == 0) return;
  const auto s = op.get<AttentionAttributes>();
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    Arguments<T> a = plain_arguments<T>(op, true);
    a.delta = context.scratch.data<float>();
    const int64_t count = s.batch * s.heads * s.sequence;
    launch(context, dim3(unsigned(ceil_div(count, kWarps))), dim3(kThreads), 0, &attention_delta_kernel<T>, a, count);
    with_width(s.head_width, [&](auto width) {
      constexpr int W = decltype(width)::value, kHeight = Tile<W>::kHeight;
      launch(context, grid_of(s.sequence, kHeight, s.kv_heads, s.batch), dim3(kThreads), shared_bytes<W>(2),
             &attention_dkv_kernel<W, T>, a);
      launch(context, grid_of(s.sequence, kHeight, s.heads, s.batch), dim3(kThreads), shared_bytes<W>(2),
             &attention_dq_kernel<W, T>, a);
    });
  });
}

/// Calls f with the width of a head that flash attention takes.
template <class F> void with_flash_width(int64_t head_width, F&& f) {
  if (head_width == 64)
    f(std::integral_constant<int, 64>{});
  else if (head_width == 96)
    f(std::integral_constant<int, 96>{});
  else
    f(std::integral_constant<int, 128>{});
}

static_assert(flash::ForwardTile<128>::kBytes <= kSharedLimit && flash::QueriesTile<128>::kBytes <= kSharedLimit &&
              flash::KeysTile<128>::kBytes <= kSharedLimit);

flash::Arguments flash_arguments(const Op& op, bool backward) {
  auto a = arguments_of<bf16, flash::Arguments>(op, backward);
  a.B = int(op.get<AttentionAttributes>().batch);
  a.group = a.H / a.G;
  a.scale2 = a.scale * flash::kLog2E;
  return a;
}

/// So many key/value heads are worked on at the same time: two tensors of them, of `group` heads each, lie in the L2.
int heads_together(const AttentionAttributes& s, int64_t group) {
  const int64_t bytes = 2 * group * s.sequence * s.head_width * bytes_of(Dtype::bf16);
  return bytes < flash::kTogetherBytes ? int(flash::kTogetherBytes / bytes) : 1;
}

void launch_flash_attention_forward(const Op& op, const LaunchContext& context) {
  const auto s = op.get<AttentionAttributes>();
  flash::Arguments a = flash_arguments(op, false);
  a.together = heads_together(s, 1) * a.group;
  with_flash_width(s.head_width, [&](auto width) {
    using L = flash::ForwardTile<decltype(width)::value>;
    const int64_t blocks = ceil_div(s.sequence, L::kQueries) * s.heads * s.batch;
    launch(context, dim3(unsigned(blocks)), dim3(flash::kThreads), L::kBytes,
           &flash::attention_flash_forward_kernel<decltype(width)::value>, a);
  });
}

void launch_flash_attention_backward(const Op& op, const LaunchContext& context) {
  const auto s = op.get<AttentionAttributes>();
  flash::Arguments a = flash_arguments(op, true);
  a.numbers = context.scratch.data<float>();
  a.reach = context.scratch.data<int>() + AttentionScratch(s).reach();
  with_flash_width(s.head_width, [&](auto width) {
    constexpr int D = decltype(width)::value;
    launch(context, grid_of(s.sequence, AttentionScratch::kTile, s.heads, s.batch), dim3(flash::kThreads), 0,
           &flash::attention_flash_delta_kernel<D>, a);
    using Keys = flash::KeysTile<D>;
    a.together = heads_together(s, a.group);
    launch(context, dim3(unsigned(ceil_div(s.sequence, Keys::kKeys) * s.kv_heads * s.batch)), dim3(flash::kThreads),
           Keys::kBytes, &flash::attention_flash_dkv_kernel<D>, a);
    using Queries = flash::QueriesTile<D>;
    a.together = heads_together(s, 1) * a.group;
    launch(context, dim3(unsigned(ceil_div(s.sequence, Queries::kQueries) * s.heads * s.batch)), dim3(flash::kThreads),
           Queries::kBytes, &flash::attention_flash_dq_kernel<D>, a);
  });
}

void launch_attention_forward(const Op& op, const LaunchContext& context) {
  if (op[0].size() == 0) return;
  const bool flash = flash_attention_takes(op.get<AttentionAttributes>(), op[0], op[2], op[3]);
  (flash ? launch_flash_attention_forward : launch_plain_attention_forward)(op, context);
}

void launch_attention_backward(const Op& op, const LaunchContext& context) {
  if (op[0].size() == 0) return;
  const auto s = op.get<AttentionAttributes>();
  const bool flash = flash_attention_takes(s, op[0], op[1], op[2], op[3], op[5], op[6]);
  (flash ? launch_flash_attention_backward : launch_plain_attention_backward)(op, context);
}

REGISTER_IMPLEMENTATION("attention_forward", "plain", launch_plain_attention_forward);
REGISTER_IMPLEMENTATION("attention_backward", "plain", launch_plain_attention_backward);
REGISTER_LAUNCH("attention_forward", launch_attention_forward);
REGISTER_LAUNCH("attention_backward", launch_attention_backward);

} // namespace
} // namespace SIMT_NS
} // namespace triax
