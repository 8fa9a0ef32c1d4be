#include "kernels/activation.h"

namespace triax {
namespace {

template <int Flops> Description describe(const Target&, const Op& op) {
  return {.flops = double(Flops) * double(op[0].size()), .bytes = operand_bytes(op), .kernels = {op.kind->name}};
}

const OpKind kSwigluForward{"swiglu_forward", describe<5>};
const OpKind kSwigluBackward{"swiglu_backward", describe<6>}; // of both halves
const OpKind kGeluForward{"gelu_forward", describe<8>};
const OpKind kGeluBackward{"gelu_backward", describe<14>};

void ensure_like(const Tensor& t, const Tensor& like, const char* name) {
  ENSURE(t.dense() && t.dtype == like.dtype && t.rank == like.rank && t.dim == like.dim, "activation: ", name, " is ",
         t.describe(), ", expected a dense ", like.describe());
}

/// x holds two halves, each like y.
void ensure_halves(const Tensor& x, const Tensor& y) {
  ENSURE(y.rank == 2 && y.dense() && (y.dtype == Dtype::f32 || y.dtype == Dtype::bf16), "swiglu: y is ", y.describe());
  ENSURE(is(x, y.dtype, {y.dim[0], 2 * y.dim[1]}) && x.dense(), "swiglu: ", x.describe(), " beside ", y.describe());
}

} // namespace

Op swiglu_forward(const Tensor& y, const Tensor& x) {
  ensure_halves(x, y);
  return Op(kSwigluForward).write(y).read(x);
}

Op swiglu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) {
  ensure_halves(x, dy);
  ensure_like(dx, x, "dx");
  return Op(kSwigluBackward).write(dx).read(dy).read(x);
}

Op gelu_forward(const Tensor& y, const Tensor& x, Gelu kind) {
  ENSURE(x.dtype == Dtype::f32 || x.dtype == Dtype::bf16, "gelu: x is ", x.describe());
  ensure_like(x, x, "x");
  ensure_like(y, x, "y");
  return Op(kGeluForward).write(y).read(x).set(kind);
}

Op gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu kind) {
  ENSURE(x.dtype == Dtype::f32 || x.dtype == Dtype::bf16, "gelu: x is ", x.describe());
  ensure_like(x, x, "x");
  ensure_like(dx, x, "dx");
  ensure_like(dy, x, "dy");
  return Op(kGeluBackward).write(dx).read(dy).read(x).set(kind);
}

} // namespace triax
