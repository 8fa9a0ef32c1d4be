#include "kernels/cross_entropy.h"
#include "kernels/cross_entropy_shape.h"
#include "kernels/step_state.h"

namespace triax {
namespace {

Description describe_loss(const Target&, const Op& op) {
  return {.flops = (op.get<CrossEntropyAttributes>().backward ? 8.0 : 5.0) * double(op[1].size()),
          .bytes = operand_bytes(op),
          .kernels = {"cross_entropy"}};
}

Description describe_sum(const Target&, const Op& op) {
  return {.flops = 2.0 * double(op[1].size()), .bytes = operand_bytes(op), .kernels = {"sum_losses"}};
}

const OpKind kCrossEntropy{"cross_entropy", describe_loss};
const OpKind kSumLosses{"sum_losses", describe_sum};

} // namespace

Op cross_entropy(const Tensor& losses, const Tensor& logits, const Tensor& labels, float scale, bool backward) {
  ENSURE(logits.rank == 2 && logits.stride[1] == 1 && logits.dim[1] > 0 &&
             (logits.dtype == Dtype::f32 || logits.dtype == Dtype::bf16),
         "cross_entropy: logits are ", logits.describe());
  ENSURE(is(losses, Dtype::f32, {logits.dim[0]}) && losses.dense(), "cross_entropy: losses are ", losses.describe(),
         " for ", logits.describe());
  ENSURE(is(labels, Dtype::i32, {logits.dim[0]}) && labels.dense(), "cross_entropy: labels are ", labels.describe(),
         " for ", logits.describe());
  Op op(kCrossEntropy);
  op.write(losses);
  backward ? op.update(logits) : op.read(logits);
  return op.read(labels).set(CrossEntropyAttributes{scale, backward});
}

Op sum_losses(const Tensor& scalars, const Tensor& losses, const Tensor& labels) {
  ENSURE(is(scalars, Dtype::f32, {kStepScalars}) && scalars.dense(), "sum_losses: scalars are ", scalars.describe());
  ENSURE(losses.rank == 1 && losses.dtype == Dtype::f32 && losses.dense(), "sum_losses: losses are ",
         losses.describe());
  ENSURE(is(labels, Dtype::i32, {losses.dim[0]}) && labels.dense(), "sum_losses: labels are ", labels.describe(),
         " for ", losses.describe());
  return Op(kSumLosses).update(scalars).read(losses).read(labels);
}

} // namespace triax
