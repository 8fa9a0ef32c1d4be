#include "kernels/attention.h"
#include "kernels/attention_shape.h"
#include <algorithm>
#include <omp.h>

namespace triax {
namespace {

/// Products of the mathematics, each 2 D a pair of positions: QK and PV; and backward QK again, and four gradients.
constexpr double kForwardProducts = 2, kBackwardProducts = 5;

double causal_flops(const AttentionAttributes& a, double products) {
  const double pairs = 0.5 * double(a.sequence) * double(a.sequence + 1);
  return products * 2.0 * double(a.batch * a.heads) * pairs * double(a.head_width);
}

int64_t host_scratch(const AttentionAttributes& a, bool backward) {
  const int64_t team = std::min<int64_t>(omp_get_max_threads(), a.batch * a.kv_heads);
  return team * attention_host_floats(a, backward) * bytes_of(Dtype::f32);
}

Description describe_forward(const Target& target, const Op& op) {
  const auto a = op.get<AttentionAttributes>();
  return {.flops = causal_flops(a, kForwardProducts),
          .bytes = operand_bytes(op),
          .scratch = target.kind == Target::Kind::cpu ? host_scratch(a, false) : 0,
          .kernels = {"attention_forward"}};
}

Description describe_backward(const Target& target, const Op& op) {
  const auto a = op.get<AttentionAttributes>();
  const bool cpu = target.kind == Target::Kind::cpu;
  Description d{.flops = causal_flops(a, kBackwardProducts),
                .bytes = operand_bytes(op),
                .scratch = cpu ? host_scratch(a, true) : attention_cuda_scratch(a),
                .kernels = {"attention_backward"}};
  if (!cpu) d.kernels = {"attention_delta", "attention_dkv", "attention_dq"};
  return d;
}

const OpKind kForward{"attention_forward", describe_forward};
const OpKind kBackward{"attention_backward", describe_backward};

AttentionAttributes attributes_of(const AttentionShape& s) {
  ENSURE(s.kv_heads > 0 && s.heads % s.kv_heads == 0, "attention: ", s.kv_heads, " key/value heads do not divide ",
         s.heads, " heads");
  return {s.batch, s.sequence, s.heads, s.kv_heads, s.head_width, s.scale};
}

void ensure_rows(const Tensor& t, const AttentionShape& s, Dtype dtype, int64_t heads, const char* name) {
  const int64_t columns = heads * s.head_width;
  ENSURE(is(t, dtype, {s.batch * s.sequence, columns}) && t.stride[1] == 1, "attention: ", name, " is ", t.describe(),
         ", expected ", name_of(dtype), "[", s.batch * s.sequence, ", ", columns, "]");
}

void ensure_common(const AttentionShape& s, const Tensor& lse, const Tensor& document_start) {
  ENSURE(is(lse, Dtype::f32, {s.batch, s.heads, s.sequence}) && lse.dense(), "attention: lse is ", lse.describe());
  ENSURE(is(document_start, Dtype::i32, {s.batch * s.sequence}) && document_start.dense(),
         "attention: document_start is ", document_start.describe());
}

} // namespace

Op attention_forward(const AttentionForward& f) {
  const AttentionShape& s = f.shape;
  const AttentionAttributes attributes = attributes_of(s);
  const Dtype dtype = f.qkv.dtype;
  ENSURE(dtype == Dtype::f32 || dtype == Dtype::bf16, "attention: qkv is ", f.qkv.describe());
  ensure_rows(f.out, s, dtype, s.heads, "out");
  ensure_rows(f.qkv, s, dtype, s.heads + 2 * s.kv_heads, "qkv");
  ensure_common(s, f.lse, f.document_start);
  return Op(kForward).write(f.out).write(f.lse).read(f.qkv).read(f.document_start).set(attributes);
}

Op attention_backward(const AttentionBackward& f) {
  const AttentionShape& s = f.shape;
  const AttentionAttributes attributes = attributes_of(s);
  const Dtype dtype = f.qkv.dtype;
  ENSURE(dtype == Dtype::f32 || dtype == Dtype::bf16, "attention: qkv is ", f.qkv.describe());
  ensure_rows(f.dqkv, s, dtype, s.heads + 2 * s.kv_heads, "dqkv");
  ensure_rows(f.dout, s, dtype, s.heads, "dout");
  ensure_rows(f.out, s, dtype, s.heads, "out");
  ensure_rows(f.qkv, s, dtype, s.heads + 2 * s.kv_heads, "qkv");
  ensure_common(s, f.lse, f.document_start);
  return Op(kBackward)
      .write(f.dqkv)
      .read(f.dout)
      .read(f.out)
      .read(f.lse)
      .read(f.qkv)
      .read(f.document_start)
      .set(attributes);
}

} // namespace triax
