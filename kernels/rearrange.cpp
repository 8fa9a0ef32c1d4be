#include "kernels/rearrange.h"
#include "kernels/rearrange_shape.h"

namespace triax {
namespace {

Description describe(const Target&, const Op& op) {
  const bool accumulate = op.get<RearrangeAttributes>().accumulate;
  return {.flops = accumulate ? double(op[0].size()) : 0.0, .bytes = operand_bytes(op), .kernels = {"rearrange"}};
}

const OpKind kRearrange{"rearrange", describe};

} // namespace

Op rearrange(const Tensor& y, const Tensor& x, bool accumulate) {
  for (const Tensor& t : {y, x})
    ENSURE(t.rank > 0 && t.stride[size_t(t.rank - 1)] == 1 && (t.dtype == Dtype::f32 || t.dtype == Dtype::bf16),
           "rearrange: ", x.describe(), " to ", y.describe());
  ENSURE(y.rank == x.rank && y.dim == x.dim, "rearrange: ", x.describe(), " to ", y.describe());
  ENSURE(!accumulate || y.dtype == Dtype::f32, "rearrange: accumulates in f32, not into ", y.describe());
  Op op(kRearrange);
  accumulate ? op.update(y) : op.write(y);
  return op.read(x).set(RearrangeAttributes{accumulate});
}

} // namespace triax
