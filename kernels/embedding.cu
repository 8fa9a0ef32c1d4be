// Embedding of tokens: rows of a table gathered, and their gradients summed back in a fixed order. Bound by memory.
#include "kernels/each.h"
#include "kernels/embedding.h"
#include "kernels/step_state.h"

namespace triax {
inline namespace SIMT_NS {

constexpr int64_t kRowsAhead = 2; ///< that the host fetches before it copies them: nothing else foresees them

/// The tokens whose rows a table of `rows` rows holds: all, or with a state this rank's part.
struct Vocabulary {
  const StepState* state;
  int64_t rows;
  SIMT_DEV int64_t first() const { return state ? state->tensor_rank * rows : 0; }
  SIMT_DEV bool has(int64_t row) const { return !state || (row >= 0 && row < rows); }
};

/// Which rows of the positions those of x take: all in turn, or those that an index names.
struct PositionRows {
  const int32_t* index;
  int64_t period;
  SIMT_DEV int64_t at(int64_t n) const { return index ? index[n % period] : n % period; }
};

template <int Block, int V, class T, bool Positions> __global__ void __launch_bounds__(Block)
    embedding_forward_kernel(T* __restrict__ y, const int32_t* __restrict__ tokens, const T* __restrict__ table,
                             const T* __restrict__ positions, PositionRows rows, int64_t C, Vocabulary vocabulary) {
  const int64_t row = blockIdx.x, first = vocabulary.first(), entry = tokens[row] - first;
  T* out = y + row * C;
  const T* const from = vocabulary.has(entry) ? table + entry * C : nullptr;
  // The rank that holds token 0 adds the positions.
  const T* const position = Positions && first == 0 ? positions + rows.at(row) * C : nullptr;
  if (!vocabulary.state && row + kRowsAhead < gridDim.x) fetch_row(table + int64_t(tokens[row + kRowsAhead]) * C, C);
  if (from && position) {
    each<Block, V>(0, C, [=](auto width, int64_t i) {
      constexpr int W = decltype(width)::value;
      float v[W], p[W];
      load<W>(v, from + i);
      load<W>(p, position + i);
      for (int k = 0; k < W; ++k) v[k] += p[k];
      store<W>(out + i, v);
    });
  } else if (const T* const only = from ? from : position) {
    each<Block, V>(0, C, [=](auto width, int64_t i) { // on the host tiles as well: one memcpy of a row is half as fast
      constexpr int W = decltype(width)::value;
      T v[W];
      memcpy(v, only + i, sizeof(v));
      memcpy(out + i, v, sizeof(v));
    });
  } else {
    each<Block, V>(0, C, [=](auto width, int64_t i) {
      for (int k = 0; k < decltype(width)::value; ++k) out[i + k] = to<T>(0.0f);
    });
  }
}

/// out[column ...] += the rows of x that `row_of(0 .. count)` names, in this order.
template <int V, class T, class RowOf> SIMT_DEV void add_rows(float* __restrict__ out, const T* __restrict__ x,
                                                              int64_t count, int64_t column, int64_t C,
                                                              const RowOf& row_of) {
  float sum[V];
  const int columns = sum_rows<V>(sum, x + column, C - column, count, [=](int64_t n) { return row_of(n) * C; });
  for (int k = 0; k < columns; ++k) out[column + k] += sum[k];
}

/// Places in `order` of one block. Runs of one token belong to the block in whose places they start.
constexpr int64_t kPlaces = kIsHost ? 64 : 1;

template <int Block, int V, class T> __global__ void __launch_bounds__(Block)
    embedding_backward_kernel(float* __restrict__ dtable, const T* __restrict__ dy, const int32_t* __restrict__ tokens,
                              const int32_t* __restrict__ order, int64_t rows, int64_t C, Vocabulary vocabulary) {
  const int64_t begin = blockIdx.x * kPlaces, end = begin + kPlaces < rows ? begin + kPlaces : rows;
  const int64_t column = (int64_t(blockIdx.y) * Block + threadIdx.x) * V;
  if (column >= C) return;
  for (int64_t first = begin; first < end;) {
    const int32_t token = tokens[order[first]];
    int64_t last = first + 1;
    const bool starts = first == 0 || tokens[order[first - 1]] != token;
    while (last < (starts ? rows : end) && tokens[order[last]] == token) ++last;
    const int64_t entry = token - vocabulary.first();
    if (starts && vocabulary.has(entry))
      add_rows<V>(dtable + entry * C, dy, last - first, column, C,
                  [=](int64_t n) { return int64_t(order[first + n]); });
    first = last;
  }
}

template <int Block, int V, class T> __global__ void __launch_bounds__(Block)
    position_backward_kernel(float* __restrict__ dpositions, const T* __restrict__ dy, int64_t rows,
                             PositionRows positions, int64_t C) {
  const int64_t first = blockIdx.x, period = positions.period, column = (int64_t(blockIdx.y) * Block + threadIdx.x) * V;
  if (column >= C || first >= rows) return;
  add_rows<V>(dpositions + positions.at(first) * C, dy, (rows - first + period - 1) / period, column, C,
              [=](int64_t n) { return first + n * period; });
}

static PositionRows position_rows(const Op& op, int index, const Tensor& positions) {
  if (!op.has(index)) return {nullptr, positions.dim[0]};
  return {op[index].data<int32_t>(), op[index].dim[0]};
}

static void launch_embedding_forward(const Op& op, const LaunchContext& context) {
  const int64_t rows = op[0].dim[0], C = op[0].dim[1];
  if (rows == 0 || C == 0) return;
  with_float_type(op[0].dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int B = kBlock<128>, V = kVector<T, 64>;
    T *y = op[0].data<T>(), *table = op[2].data<T>(), *positions = op.has(3) ? op[3].data<T>() : nullptr;
    const Vocabulary vocabulary{op.has(4) ? op[4].data<StepState>() : nullptr, op[2].dim[0]};
    const PositionRows of_rows = position_rows(op, 5, op[3]);
    const auto go = [&](auto kernel) {
      launch(context, dim3(unsigned(rows)), dim3(B), 0, kernel, y, op[1].data<int32_t>(), table, positions, of_rows, C,
             vocabulary);
    };
    const bool vectors = kIsHost || (C % V == 0 && wide(y, table, positions));
    if (positions)
      vectors ? go(&embedding_forward_kernel<B, V, T, true>) : go(&embedding_forward_kernel<B, 1, T, true>);
    else
      vectors ? go(&embedding_forward_kernel<B, V, T, false>) : go(&embedding_forward_kernel<B, 1, T, false>);
  });
}

static void launch_embedding_backward(const Op& op, const LaunchContext& context) {
  const int64_t rows = op[2].dim[0], C = op[2].dim[1];
  if (rows == 0 || C == 0) return;
  with_float_type(op[2].dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int B = kBlock<128>, V = kVector<T, 2048>;
    const T* dy = op[2].data<T>();
    const Vocabulary vocabulary{op.has(5) ? op[5].data<StepState>() : nullptr, op[0].dim[0]};
    const auto go = [&](auto width) {
      constexpr int W = decltype(width)::value;
      const unsigned tiles = unsigned(ceil_div(C, B * W));
      launch(context, dim3(unsigned(ceil_div(rows, kPlaces)), tiles), dim3(B), 0, &embedding_backward_kernel<B, W, T>,
             op[0].data<float>(), dy, op[3].data<int32_t>(), op[4].data<int32_t>(), rows, C, vocabulary);
      if (!op.has(1)) return;
      const PositionRows positions = position_rows(op, 6, op[1]);
      launch(context, dim3(unsigned(positions.period), tiles), dim3(B), 0, &position_backward_kernel<B, W, T>,
             op[1].data<float>(), dy, rows, positions, C);
    };
    kIsHost || (C % V == 0 && wide(dy)) ? go(Width<V>{}) : go(Width<1>{});
  });
}

REGISTER_LAUNCH("embedding_forward", launch_embedding_forward);
REGISTER_LAUNCH("embedding_backward", launch_embedding_backward);

} // namespace SIMT_NS
} // namespace triax
