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

Description describe_statistics(const Target&, const Op& op) {
  return {.flops = 3.0 * double(op[1].size()), .bytes = operand_bytes(op), .kernels = {"softmax_statistics"}};
}

Description describe_parts(const Target&, const Op& op) {
  const bool backward = op.get<PartsAttributes>().backward != 0;
  // Forward alone, the logits are not looked at again.
  return {.flops = backward ? 3.0 * double(op[1].size()) : 0.0,
          .bytes = operand_bytes(op) - (backward ? 0.0 : double(op[1].bytes())),
          .kernels = {"cross_entropy_parts"}};
}

void ensure_logits(const Tensor& logits, const Tensor& labels) {
  ENSURE(logits.rank == 2 && logits.stride[1] == 1 && logits.dim[1] > 0 &&
             (logits.dtype == Dtype::f32 || logits.dtype == Dtype::bf16),
         "cross_entropy: logits are ", logits.describe());
  ENSURE(is(labels, Dtype::i32, {logits.dim[0]}) && labels.dense(), "cross_entropy: labels are ", labels.describe(),
         " for ", logits.describe());
}

const OpKind kSoftmaxStatistics{"softmax_statistics", describe_statistics};
const OpKind kCrossEntropyParts{"cross_entropy_parts", describe_parts};
const OpKind kCrossEntropy{"cross_entropy", describe_loss};
const OpKind kSumLosses{"sum_losses", describe_sum};

} // namespace

Op cross_entropy(const Tensor& losses, const Tensor& logits, const Tensor& labels, float scale, bool backward) {
  ensure_logits(logits, labels);
  ENSURE(is(losses, Dtype::f32, {logits.dim[0]}) && losses.dense(), "cross_entropy: losses are ", losses.describe(),
         " for ", logits.describe());
  Op op(kCrossEntropy);
  op.write(losses);
  backward ? op.update(logits) : op.read(logits);
  return op.read(labels).set(CrossEntropyAttributes{scale, backward});
}

Op softmax_statistics(const Tensor& statistics, const Tensor& logits, const Tensor& labels, const Tensor& state,
                      int64_t classes) {
  ensure_logits(logits, labels);
  ENSURE(is(statistics, Dtype::f32, {logits.dim[0], 3}) && statistics.dense(), "softmax_statistics: statistics are ",
         statistics.describe(), " for ", logits.describe());
  ENSURE(is(state, Dtype::u8, {int64_t(sizeof(StepState))}), "softmax_statistics: state is ", state.describe());
  return Op(kSoftmaxStatistics)
      .write(statistics)
      .read(logits)
      .read(labels)
      .read(state)
      .set(PartsAttributes{classes, 0.0f, 0});
}

Op cross_entropy_parts(const Tensor& losses, const Tensor& logits, const Tensor& labels, const Tensor& statistics,
                       const Tensor& state, int64_t classes, float scale, bool backward) {
  ensure_logits(logits, labels);
  ENSURE(is(losses, Dtype::f32, {logits.dim[0]}) && losses.dense(), "cross_entropy_parts: losses are ",
         losses.describe(), " for ", logits.describe());
  ENSURE(is(statistics, Dtype::f32, {statistics.dim[0], logits.dim[0], 3}) && statistics.dense(),
         "cross_entropy_parts: statistics are ", statistics.describe(), " for ", logits.describe());
  ENSURE(is(state, Dtype::u8, {int64_t(sizeof(StepState))}), "cross_entropy_parts: state is ", state.describe());
  Op op(kCrossEntropyParts);
  op.write(losses);
  backward ? op.update(logits) : op.read(logits);
  return op.read(labels).read(statistics).read(state).set(PartsAttributes{classes, scale, backward});
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
