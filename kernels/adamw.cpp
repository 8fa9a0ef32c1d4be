#include "kernels/adamw.h"
#include "kernels/adamw_shape.h"
#include "kernels/step_state.h"

namespace triax {
namespace {

Description describe_adamw(const Target&, const Op& op) {
  return {.flops = 15.0 * double(op[0].size()), .bytes = operand_bytes(op), .kernels = {"adamw"}};
}

Description describe_norm(const Target&, const Op& op) {
  return {.flops = 2.0 * double(op[1].size()), .bytes = operand_bytes(op), .kernels = {"squared_norm"}};
}

Description describe_total(const Target&, const Op& op) {
  return {.flops = double(op[1].size()), .bytes = operand_bytes(op), .kernels = {"norm_total"}};
}

Description describe_finish(const Target&, const Op& op) {
  return {.flops = 8, .bytes = operand_bytes(op), .kernels = {"finish_gradients"}};
}

const OpKind kAdamW{"adamw", describe_adamw};
const OpKind kSquaredNorm{"squared_norm", describe_norm};
const OpKind kNormTotal{"norm_total", describe_total};
const OpKind kFinishGradients{"finish_gradients", describe_finish};

void ensure_range(const Tensor& t, Dtype dtype, int64_t n, const char* name) {
  ENSURE(is(t, dtype, {n}) && t.dense(), "adamw: ", name, " is ", t.describe(), " for a range of ", n);
}

void ensure_scalars(const Tensor& t) {
  ENSURE(is(t, Dtype::f32, {kStepScalars}) && t.dense(), "step scalars are ", t.describe());
}

} // namespace

Op adamw(const AdamW& a) {
  const int64_t n = a.weights.dim[0];
  ENSURE(a.weights.dtype == Dtype::f32 || a.weights.dtype == Dtype::bf16, "adamw: weights are ", a.weights.describe());
  ensure_range(a.weights, a.weights.dtype, n, "weights");
  ENSURE(a.master.empty() == (a.weights.dtype == Dtype::f32), "adamw: weights ", a.weights.describe(), " with master ",
         a.master.describe());
  if (!a.master.empty()) ensure_range(a.master, Dtype::f32, n, "master");
  ensure_range(a.moment1, Dtype::f32, n, "moment1");
  ensure_range(a.moment2, Dtype::f32, n, "moment2");
  ensure_range(a.gradient, Dtype::f32, n, "gradient");
  ENSURE(is(a.state, Dtype::u8, {int64_t(sizeof(StepState))}), "adamw: state is ", a.state.describe());
  ensure_scalars(a.scalars);
  ENSURE(a.first >= 0, "adamw: the range begins at ", a.first);
  Op op(kAdamW);
  a.master.empty() ? op.update(a.weights) : op.write(a.weights);
  return op.update(a.master)
      .update(a.moment1)
      .update(a.moment2)
      .read(a.gradient)
      .read(a.state)
      .read(a.scalars)
      .set(AdamWAttributes{a.beta1, a.beta2, a.eps, a.decay, a.first, a.decay_to, a.shared_from, a.stochastic});
}

Op squared_norm(const Tensor& blocks, const Tensor& x, const Tensor& state, const SharedRange& shared) {
  ENSURE(x.rank == 1 && x.dtype == Dtype::f32 && x.dense(), "squared_norm: x is ", x.describe());
  ENSURE(is(blocks, Dtype::f32, {(x.dim[0] + kNormBlock - 1) / kNormBlock}) && blocks.dense(),
         "squared_norm: blocks are ", blocks.describe(), " for ", x.describe());
  ENSURE(is(state, Dtype::u8, {int64_t(sizeof(StepState))}), "squared_norm: state is ", state.describe());
  ENSURE(shared.copied_from >= 0 && shared.whole_from >= shared.copied_from && shared.copies >= 1 &&
             shared.whole_by >= 1,
         "squared_norm: from ", shared.copied_from, " shared by ", shared.copies, ", from ", shared.whole_from, " by ",
         shared.whole_by);
  return Op(kSquaredNorm).write(blocks).read(x).read(state).set(shared);
}

Op norm_total(const Tensor& total, const Tensor& blocks, int64_t count) {
  ENSURE(is(total, Dtype::f32, {1}), "norm_total: total is ", total.describe());
  ENSURE(blocks.rank == 2 && blocks.dtype == Dtype::f32 && blocks.stride[1] == 1 && count <= blocks.size(),
         "norm_total: ", count, " blocks of ", blocks.describe());
  return Op(kNormTotal).write(total).read(blocks).set(NormTotalAttributes{count});
}

Op finish_gradients(const Tensor& scalars, float capacity, float clip) {
  ensure_scalars(scalars);
  ENSURE(capacity > 0 && clip >= 0, "finish_gradients: capacity ", capacity, ", clip ", clip);
  return Op(kFinishGradients).update(scalars).set(FinishAttributes{capacity, clip});
}

} // namespace triax
