#include "kernels/norm.h"
#include "kernels/norm_shape.h"
#include "kernels/partial_sums.h"

namespace triax {
namespace {

Description describe_forward(const Target&, const Op& op) {
  return {.flops = 8.0 * double(op[0].size()), .bytes = operand_bytes(op), .kernels = {"norm_forward"}};
}

Description describe_backward(const Target& target, const Op& op) {
  const int64_t partials = partial_sums(target.kind == Target::Kind::cpu, op[0].dim[0]);
  const int64_t columns = op[0].dim[1], sums = op.get<NormAttributes>().kind == NormKind::layer ? 2 : 1;
  return {.flops = 14.0 * double(op[0].size()),
          .bytes = operand_bytes(op),
          .scratch = sums * partials * columns * bytes_of(Dtype::f32),
          .kernels = {"norm_backward", "add_partials"}};
}

const OpKind kForward{"norm_forward", describe_forward};
const OpKind kBackward{"norm_backward", describe_backward};

void ensure_rows(const Tensor& t, const Tensor& like, const char* name) {
  ENSURE(t.empty() || (is(t, like.dtype, {like.dim[0], like.dim[1]}) && t.dense()), "norm: ", name, " is ",
         t.describe(), ", expected a dense ", like.describe());
}

} // namespace

Op norm_forward(const NormForward& f) {
  const int64_t rows = f.x.dim[0], columns = f.x.dim[1];
  ensure_rows(f.y, f.x, "y");
  ensure_rows(f.sum, f.x, "sum");
  ensure_rows(f.residual, f.x, "residual");
  ENSURE(f.sum.empty() == f.residual.empty(), "norm: a residual and its sum come together");
  ENSURE(is(f.statistics, Dtype::f32, {rows, 2}), "norm: statistics are ", f.statistics.describe());
  ENSURE(is(f.weight, f.x.dtype, {columns}), "norm: weight is ", f.weight.describe());
  ENSURE(f.bias.empty() || is(f.bias, f.x.dtype, {columns}), "norm: bias is ", f.bias.describe());
  return Op(kForward)
      .write(f.y)
      .write(f.sum)
      .write(f.statistics)
      .read(f.x)
      .read(f.residual)
      .read(f.weight)
      .read(f.bias)
      .set(NormAttributes{f.kind, f.eps});
}

Op norm_backward(const NormBackward& f) {
  const int64_t rows = f.x.dim[0], columns = f.x.dim[1];
  ensure_rows(f.dx, f.x, "dx");
  ensure_rows(f.dy, f.x, "dy");
  ensure_rows(f.dresidual, f.x, "dresidual");
  ENSURE(is(f.statistics, Dtype::f32, {rows, 2}), "norm: statistics are ", f.statistics.describe());
  ENSURE(is(f.dweight, Dtype::f32, {columns}), "norm: dweight is ", f.dweight.describe());
  ENSURE(f.dbias.empty() || is(f.dbias, Dtype::f32, {columns}), "norm: dbias is ", f.dbias.describe());
  ENSURE(is(f.weight, f.x.dtype, {columns}), "norm: weight is ", f.weight.describe());
  return Op(kBackward)
      .write(f.dx)
      .update(f.dweight)
      .update(f.dbias)
      .read(f.dy)
      .read(f.dresidual)
      .read(f.x)
      .read(f.statistics)
      .read(f.weight)
      .set(NormAttributes{f.kind, 0.0f});
}

} // namespace triax
