#include "kernels/floor.h"

namespace triax {
namespace {

Description describe_copy(const Target&, const Op& op) {
  return {.bytes = operand_bytes(op), .kernels = {"floor_copy"}};
}

Description describe_exp(const Target&, const Op& op) {
  return {
      .flops = double(op[0].size()) * double(op.get<int64_t>()), .bytes = operand_bytes(op), .kernels = {"floor_exp"}};
}

const OpKind kFloorCopy{"floor_copy", describe_copy};
const OpKind kFloorExp{"floor_exp", describe_exp};

void ensure_pair(const Tensor& y, const Tensor& x) {
  ENSURE(is(y, Dtype::f32, {x.dim[0]}) && is(x, Dtype::f32, {x.dim[0]}) && y.dense() && x.dense(),
         "floor: ", x.describe(), " to ", y.describe());
}

} // namespace

Op floor_copy(const Tensor& y, const Tensor& x) {
  ensure_pair(y, x);
  return Op(kFloorCopy).write(y).read(x);
}

Op floor_exp(const Tensor& y, const Tensor& x, int64_t repeat) {
  ensure_pair(y, x);
  return Op(kFloorExp).write(y).read(x).set(repeat);
}

} // namespace triax
