// Boxes of up to four dimensions, row by row of the last one. Bound by memory.
#include "kernels/each.h"
#include "kernels/rearrange_shape.h"

namespace triax {
inline namespace SIMT_NS {

/// The first three of four dimensions, the last of which are rows of C elements.
struct Boxes {
  int64_t dim[3], to[3], from[3], C; ///< strides of y and of x
  explicit Boxes(const Tensor& y, const Tensor& x) : dim{1, 1, 1}, to{}, from{}, C(y.dim[size_t(y.rank - 1)]) {
    for (int d = 0; d + 1 < y.rank; ++d) {
      const int at = 4 - y.rank + d;
      dim[at] = y.dim[size_t(d)];
      to[at] = y.stride[size_t(d)];
      from[at] = x.stride[size_t(d)];
    }
  }
  int64_t rows() const { return dim[0] * dim[1] * dim[2]; }
  bool multiples_of(int64_t n) const {
    bool all = C % n == 0;
    for (int d = 0; d < 3; ++d) all = all && to[d] % n == 0 && from[d] % n == 0;
    return all;
  }
};

/// Each group of `lanes` threads has a row.
template <int Block, int V, bool Accumulate, class To, class From> __global__ void __launch_bounds__(Block)
    rearrange_kernel(To* y, const From* x, Boxes boxes, int64_t rows, int groups, int lanes) {
  const int group = int(threadIdx.x) / lanes, lane = int(threadIdx.x) % lanes;
  const int64_t row = int64_t(blockIdx.x) * groups + group;
  if (group >= groups || row >= rows) return;
  const int64_t k = row % boxes.dim[2], j = row / boxes.dim[2] % boxes.dim[1], i = row / boxes.dim[2] / boxes.dim[1];
  To* const to = y + i * boxes.to[0] + j * boxes.to[1] + k * boxes.to[2];
  const From* const from = x + i * boxes.from[0] + j * boxes.from[1] + k * boxes.from[2];
  SIMT_SIMD()
  for (int64_t c = lane * V; c < boxes.C; c += lanes * V) {
    float v[V];
    load<V>(v, from + c);
    if constexpr (Accumulate) {
      float sum[V];
      load<V>(sum, to + c);
      for (int n = 0; n < V; ++n) v[n] += sum[n];
    }
    store<V>(to + c, v);
  }
}

static void launch_rearrange(const Op& op, const LaunchContext& context) {
  if (op[0].size() == 0) return;
  const Boxes boxes(op[0], op[1]);
  const bool accumulate = op.get<RearrangeAttributes>().accumulate;
  with_float_type(op[0].dtype, [&](auto to) {
    with_float_type(op[1].dtype, [&](auto from) {
      using To = decltype(to);
      using From = decltype(from);
      constexpr int B = kBlock<256>, V = kIsHost ? 1 : 8;
      To* const y = op[0].data<To>();
      const From* const x = op[1].data<From>();
      const auto go = [&](auto width) {
        constexpr int W = decltype(width)::value;
        const int64_t want = ceil_div(boxes.C, W), lanes = want < B ? want : B, groups = B / lanes;
        const auto with = [&](auto kernel) {
          launch(context, dim3(unsigned(ceil_div(boxes.rows(), groups))), dim3(B), 0, kernel, y, x, boxes, boxes.rows(),
                 int(groups), int(lanes));
        };
        if constexpr (sizeof(To) == 4)
          if (accumulate) return with(&rearrange_kernel<B, W, true, To, From>);
        with(&rearrange_kernel<B, W, false, To, From>);
      };
      boxes.multiples_of(V) && wide(y, x) ? go(Width<V>{}) : go(Width<1>{});
    });
  });
}

REGISTER_LAUNCH("rearrange", launch_rearrange);

} // namespace SIMT_NS
} // namespace triax
