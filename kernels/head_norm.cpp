#include "kernels/head_norm.h"
#include "kernels/head_norm_shape.h"
#include "kernels/partial_sums.h"

namespace triax {
namespace {

Description describe_forward(const Target&, const Op& op) {
  return {.flops = 5.0 * double(op[0].size()), .bytes = operand_bytes(op), .kernels = {"head_norm_forward"}};
}

Description describe_backward(const Target& target, const Op& op) {
  return {.flops = 12.0 * double(op[0].size()),
          .bytes = operand_bytes(op),
          .scratch = partial_sums(target.kind == Target::Kind::cpu, op[0].dim[0]) * op[1].bytes(),
          .kernels = {"head_norm_backward", "add_partials"}};
}

const OpKind kForward{"head_norm_forward", describe_forward};
const OpKind kBackward{"head_norm_backward", describe_backward};

/// Checks what both passes have and gives the head's width.
HeadNormAttributes attributes_of(int64_t queries, float eps, const Tensor& x, const Tensor& before,
                                 const Tensor& weight) {
  ENSURE(x.rank == 2 && x.stride[1] == 1 && (x.dtype == Dtype::f32 || x.dtype == Dtype::bf16), "head_norm: x is ",
         x.describe());
  ENSURE(is(before, x.dtype, {x.dim[0], x.dim[1]}) && before.dense(), "head_norm: before is ", before.describe(),
         ", expected a dense ", x.describe());
  ENSURE(weight.rank == 1 && weight.dtype == x.dtype && weight.dense() && weight.dim[0] > 0 && weight.dim[0] % 2 == 0,
         "head_norm: weight is ", weight.describe());
  const int64_t width = weight.dim[0] / 2, heads = x.dim[1] / width;
  ENSURE(x.dim[1] % width == 0 && queries >= 0 && queries <= heads && width <= INT32_MAX, "head_norm: ", queries,
         " query heads of width ", width, " in ", x.describe());
  return {queries, eps, int32_t(width)};
}

} // namespace

Op head_norm_forward(const HeadNormForward& f) {
  const auto attributes = attributes_of(f.queries, f.eps, f.x, f.before, f.weight);
  return Op(kForward).update(f.x).write(f.before).read(f.weight).set(attributes);
}

Op head_norm_backward(const HeadNormBackward& f) {
  const auto attributes = attributes_of(f.queries, f.eps, f.dx, f.before, f.weight);
  ENSURE(is(f.dweight, Dtype::f32, {f.weight.dim[0]}) && f.dweight.dense(), "head_norm: dweight is ",
         f.dweight.describe());
  return Op(kBackward).update(f.dx).update(f.dweight).read(f.before).read(f.weight).set(attributes);
}

} // namespace triax
