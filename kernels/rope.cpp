#include "kernels/rope.h"
#include "kernels/rope_shape.h"

namespace triax {
namespace {

Description describe(const Target&, const Op& op) {
  return {.flops = 3.0 * double(op[0].size()), .bytes = operand_bytes(op), .kernels = {"rope"}};
}

const OpKind kRope{"rope", describe};

} // namespace

Op rope(const Tensor& x, const Tensor& table, int64_t head_width, bool inverse) {
  ENSURE(x.rank == 2 && x.stride[1] == 1 && (x.dtype == Dtype::f32 || x.dtype == Dtype::bf16), "rope: x is ",
         x.describe());
  ENSURE(head_width > 0 && head_width % 2 == 0 && x.dim[1] % head_width == 0, "rope: heads of width ", head_width,
         " in ", x.describe());
  ENSURE(is(table, Dtype::f32, {table.dim[0], head_width}) && table.dense() && table.dim[0] > 0, "rope: table is ",
         table.describe(), " for heads of width ", head_width);
  return Op(kRope).update(x).read(table).set(RopeAttributes{head_width, inverse});
}

} // namespace triax
