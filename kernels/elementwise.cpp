#include "kernels/elementwise.h"
#include "kernels/elementwise_shape.h"
#include "kernels/partial_sums.h"

namespace triax {
namespace {

template <int Flops> Description describe_each(const Target&, const Op& op) {
  return {.flops = double(Flops) * double(op[0].size()), .bytes = operand_bytes(op), .kernels = {op.kind->name}};
}

Description describe_column_sum(const Target& target, const Op& op) {
  const int64_t partials = partial_sums(target.kind == Target::Kind::cpu, op[1].dim[0]);
  return {.flops = double(op[1].size()),
          .bytes = operand_bytes(op),
          .scratch = partials * op[0].size() * bytes_of(Dtype::f32),
          .kernels = {"column_sum", "add_partials"}};
}

Description describe_sum_pieces(const Target&, const Op& op) {
  return {.flops = double(op[1].size()), .bytes = operand_bytes(op), .kernels = {"sum_pieces"}};
}

const OpKind kSumPieces{"sum_pieces", describe_sum_pieces};
const OpKind kAddBias{"add_bias", describe_each<1>};
const OpKind kFill{"fill", describe_each<0>};
const OpKind kAdd{"add", describe_each<1>};
const OpKind kCast{"cast", describe_each<0>};
const OpKind kCopy{"copy", describe_each<0>};
const OpKind kColumnSum{"column_sum", describe_column_sum};
const OpKind kNormalFill{"normal_fill", describe_each<40>}; // a quarter of a Philox call, half a Box-Muller pair

bool is_float(const Tensor& t) { return t.dtype == Dtype::f32 || t.dtype == Dtype::bf16; }

bool same_shape(const Tensor& a, const Tensor& b) { return a.rank == b.rank && a.dim == b.dim; }

void launch_copy(const Op& op, const LaunchContext&) {
  if (op[0].size() > 0) std::memcpy(op[0].data<std::byte>(), op[1].data<std::byte>(), size_t(op[0].bytes()));
}
const LaunchRegistration registration_copy("host", "copy", launch_copy);

} // namespace

Op fill(const Tensor& y, float value) {
  ENSURE(y.dense() && (is_float(y) || y.dtype == Dtype::i32), "fill: y is ", y.describe());
  return Op(kFill).write(y).set(FillAttributes{value});
}

Op add(const Tensor& y, const Tensor& a, const Tensor& b) {
  ENSURE(y.dense() && is_float(y), "add: y is ", y.describe());
  for (const Tensor& t : {a, b})
    ENSURE(t.dense() && same_shape(t, y) && t.dtype == y.dtype, "add: ", t.describe(), " to ", y.describe());
  return Op(kAdd).write(y).read(a).read(b);
}

Op cast(const Tensor& y, const Tensor& x) {
  ENSURE(y.dense() && x.dense() && is_float(y) && is_float(x) && same_shape(y, x) && y.dtype != x.dtype,
         "cast: ", x.describe(), " to ", y.describe());
  return Op(kCast).write(y).read(x);
}

Op copy(const Tensor& y, const Tensor& x) {
  ENSURE(y.dense() && x.dense() && same_shape(y, x) && y.dtype == x.dtype, "copy: ", x.describe(), " to ",
         y.describe());
  return Op(kCopy).write(y).read(x);
}

Op column_sum(const Tensor& out, const Tensor& x) {
  ENSURE(x.rank == 2 && is_float(x) && x.stride[1] == 1, "column_sum: x is ", x.describe());
  ENSURE(is(out, Dtype::f32, {x.dim[1]}) && out.dense(), "column_sum: out is ", out.describe(), " for ", x.describe());
  return Op(kColumnSum).update(out).read(x);
}

Op sum_pieces(const Tensor& out, const Tensor& pieces, bool accumulate) {
  ENSURE(out.rank == 1 && out.dense() && is_float(out), "sum_pieces: out is ", out.describe());
  ENSURE(is(pieces, out.dtype, {pieces.dim[0], out.dim[0]}) && pieces.dense() && pieces.dim[0] > 0 &&
             pieces.dim[0] < int64_t(kSumGroup) << kSumLevels,
         "sum_pieces: pieces are ", pieces.describe(), " for ", out.describe());
  ENSURE(!accumulate || out.dtype == Dtype::f32, "sum_pieces: accumulates in f32, not into ", out.describe());
  Op op(kSumPieces);
  accumulate ? op.update(out) : op.write(out);
  return op.read(pieces).set(SumAttributes{accumulate});
}

Op add_bias(const Tensor& y, const Tensor& bias) {
  ENSURE(y.rank == 2 && y.dense() && is_float(y), "add_bias: y is ", y.describe());
  ENSURE(is(bias, y.dtype, {y.dim[1]}) && bias.dense(), "add_bias: bias is ", bias.describe(), " for ", y.describe());
  return Op(kAddBias).update(y).read(bias);
}

Op normal_fill(const Tensor& y, float std, uint64_t seed, uint32_t stream, int64_t first, int64_t pitch) {
  ENSURE(y.dense() && is_float(y) && (pitch == 0 || y.rank == 2) && first >= 0 && pitch >= 0, "normal_fill: y is ",
         y.describe(), ", first is ", first, ", pitch ", pitch);
  return Op(kNormalFill).write(y).set(NormalAttributes{seed, first, pitch, std, stream});
}

} // namespace triax
