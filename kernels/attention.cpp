#include "kernels/attention.h"
#include "kernels/attention_shape.h"
#include "kernels/choice.h"
#include "kernels/compare.h"
#include "kernels/step_state.h"
#include <algorithm>
#include <omp.h>

namespace triax {
namespace {

/// Products of the mathematics, each 2 D a pair of positions: QK and PV; and backward QK again, and four gradients.
constexpr double kForwardProducts = 2, kBackwardProducts = 5;

/// Of the pairs that a causal mask and the window leave; documents are data. Of another rank's keys, half of all pairs
/// are seen where there is no window; a window leaves fewer, which depends on the rank.
double causal_flops(const AttentionAttributes& a, double products) {
  const double T = double(a.sequence), seen = a.window > 0 ? std::min(double(a.window), T) : T;
  const double pairs = a.ring_step > 0 ? 0.5 * T * T : 0.5 * seen * (seen + 1) + (T - seen) * seen;
  return products * 2.0 * double(a.batch * a.heads) * pairs * double(a.head_width);
}

int64_t host_scratch(const AttentionAttributes& a, bool backward) {
  const int64_t team = std::min<int64_t>(omp_get_max_threads(), a.batch * a.kv_heads);
  return team * attention_host_floats(a, backward) * bytes_of(Dtype::f32);
}

template <bool Flash> Description describe_forward(const Target& target, const Op& op) {
  const auto a = op.get<AttentionAttributes>();
  const bool cpu = target.kind == Target::Kind::cpu,
             flash = Flash && !cpu && flash_attention_takes(a, op[0], op[2], op[3]);
  return {.flops = causal_flops(a, kForwardProducts),
          .bytes = operand_bytes(op),
          .scratch = cpu ? host_scratch(a, false) : 0,
          .kernels = {flash ? "attention_flash_forward" : "attention_forward"}};
}

template <bool Flash> Description describe_backward(const Target& target, const Op& op) {
  const auto a = op.get<AttentionAttributes>();
  const bool cpu = target.kind == Target::Kind::cpu;
  Description d{.flops = causal_flops(a, kBackwardProducts),
                .bytes = operand_bytes(op),
                .scratch = cpu ? host_scratch(a, true) : AttentionScratch(a).size() * bytes_of(Dtype::f32),
                .kernels = {"attention_backward"}};
  if (!cpu) d.kernels = {"attention_delta", "attention_dkv", "attention_dq"};
  if (Flash && !cpu && flash_attention_takes(a, op[0], op[1], op[2], op[3], op[5], op[6]))
    d.kernels = {"attention_flash_delta", "attention_flash_dkv", "attention_flash_dq"};
  return d;
}

const OpKind kForward{"attention_forward", describe_forward<true>};
const OpKind kBackward{"attention_backward", describe_backward<true>};

/// What cuDNN may ask for beside the plan's other workspace: a guess from its flash algorithm (the gradient of the
/// queries in f32, those of keys and values of every query head, a number a row), held to when its graph is built.
int64_t cudnn_scratch(const AttentionAttributes& a, bool backward) {
  constexpr int64_t kSmall = int64_t(16) << 20;
  return kSmall + (backward ? a.batch * a.heads * a.sequence * (12 * a.head_width + 16) : 0);
}

/// On a GPU, what cuDNN takes on every one since Ampere (its documentation of scaled dot product attention: bf16, heads
/// of a multiple of 8 up to 128); no window, for which our own leaves out more of what is not seen.
bool cudnn_is_favourite(const Target& target, const Op& op) {
  const auto a = op.get<AttentionAttributes>();
  return target.kind == Target::Kind::cuda && a.ring_ranks == 1 && !a.documents && a.window == 0 &&
         op[0].dtype == Dtype::bf16 && a.head_width % 8 == 0 && a.head_width <= 128;
}

/// With what both passes read, in the order that attention_shape.h gives.
Op reading(Op op, const Tensor& q, const Tensor& kv, const Tensor& document_start, const Tensor& state,
           const AttentionAttributes& attributes) {
  return op.read(q).read(kv).read(document_start).read(state).set(attributes);
}

/// Documents of any length, in place of numbers.
void randomize_starts(Device& device, const Op& op, const Tensor& starts) {
  const auto a = op.get<AttentionAttributes>();
  std::vector<int32_t> start(size_t(starts.size()), 0);
  uint32_t state = 1;
  for (int64_t n = 0; a.documents && n < starts.size(); ++n) {
    state = state * 1664525u + 1013904223u;
    const int64_t t = n % a.sequence;
    start[size_t(n)] = t == 0 ? 0 : state >> 24 == 0 ? int32_t(t) : start[size_t(n - 1)]; // each 256 long on average
  }
  device.write(starts, start.data());
}

void randomize_forward(Device& device, const Op& op) { randomize_starts(device, op, op[4]); }

/// With the output and the sums that belong to the queries, keys and values: other ones would be no probabilities.
void randomize_backward(Device& device, const Op& op) {
  randomize_starts(device, op, op[7]);
  const Op forward = Op(kForward).write(op[3]).write(op[4]);
  device.compute().run(reading(forward, op[5], op[6], op[7], op[8], op.get<AttentionAttributes>()));
}

template <bool Backward> Description describe_cudnn(const Target& target, const Op& op) {
  const auto a = op.get<AttentionAttributes>();
  DEMAND(target.kind == Target::Kind::cuda, "kernels.attention is 'cudnn', which ", target.name, " does not have");
  DEMAND(a.ring_ranks == 1, "kernels.attention is 'cudnn', which cannot compute the parts of ring attention: leave it "
                            "out, or set context.exchange to all_to_all");
  DEMAND(!a.documents, "kernels.attention is 'cudnn', whose masks know no document boundaries: set data.document_mask "
                       "to false, or leave kernels.attention out");
  DEMAND(op[0].dtype == Dtype::bf16 && a.head_width % 8 == 0,
         "kernels.attention is 'cudnn', which takes bf16 and heads "
         "of a multiple of 8, not ",
         op.describe(), "; leave it out");
  return {.flops = causal_flops(a, Backward ? kBackwardProducts : kForwardProducts),
          .bytes = operand_bytes(op),
          .scratch = cudnn_scratch(a, Backward),
          .kernels = {"cudnn"},
          .trusted = true};
}
const NameRegistration names[] = {{"attention_forward", "plain", describe_forward<false>},
                                  {"attention_backward", "plain", describe_backward<false>},
                                  {"attention_forward", "cudnn", describe_cudnn<false>},
                                  {"attention_backward", "cudnn", describe_cudnn<true>}};
const FavouriteRegistration favourites[] = {{"attention_forward", "cudnn", cudnn_is_favourite},
                                            {"attention_backward", "cudnn", cudnn_is_favourite}};
const RandomRegistration random_data[] = {{"attention_forward", randomize_forward},
                                          {"attention_backward", randomize_backward}};

AttentionAttributes attributes_of(const AttentionShape& s, const AttentionRing& ring) {
  ENSURE(s.kv_heads > 0 && s.heads % s.kv_heads == 0, "attention: ", s.kv_heads, " key/value heads do not divide ",
         s.heads, " heads");
  ENSURE(s.window >= 0 && s.window <= INT32_MAX, "attention: a window of ", s.window);
  ENSURE(ring.ranks == 1 || (s.sequence % 2 == 0 && ring.step >= 0 && ring.step < ring.ranks),
         "attention: ", s.sequence, " rows of a sequence in step ", ring.step, " of ", ring.ranks);
  ENSURE((ring.ranks == 1) == ring.state.empty() &&
             (ring.ranks == 1 || is(ring.state, Dtype::u8, {int64_t(sizeof(StepState))})),
         "attention: state is ", ring.state.describe(), " for ", ring.ranks, " ranks");
  return {s.batch, s.sequence,        s.heads,     s.kv_heads,          s.head_width,
          s.scale, int32_t(s.window), s.documents, int32_t(ring.ranks), int32_t(ring.step)};
}

void ensure_rows(const Tensor& t, const AttentionShape& s, Dtype dtype, int64_t heads, const char* name) {
  const int64_t columns = heads * s.head_width;
  ENSURE(is(t, dtype, {s.batch * s.sequence, columns}) && t.stride[1] == 1, "attention: ", name, " is ", t.describe(),
         ", expected ", name_of(dtype), "[", s.batch * s.sequence, ", ", columns, "]");
}

void ensure_common(const AttentionShape& s, const Tensor& q, const Tensor& kv, const Tensor& out, const Tensor& lse,
                   const Tensor& document_start) {
  const Dtype dtype = q.dtype;
  ENSURE(dtype == Dtype::f32 || dtype == Dtype::bf16, "attention: q is ", q.describe());
  ensure_rows(q, s, dtype, s.heads, "q");
  ensure_rows(kv, s, dtype, 2 * s.kv_heads, "kv");
  ensure_rows(out, s, dtype, s.heads, "out");
  ENSURE(is(lse, Dtype::f32, {s.batch, s.heads, s.sequence}) && lse.dense(), "attention: lse is ", lse.describe());
  ENSURE(is(document_start, Dtype::i32, {s.batch * s.sequence}) && document_start.dense(),
         "attention: document_start is ", document_start.describe());
}

/// Of packed rows: the queries; keys and values.
std::pair<Tensor, Tensor> parts_of(const AttentionShape& s, const Tensor& qkv, const char* name) {
  attributes_of(s, {}); // throws where the shape itself is impossible
  ensure_rows(qkv, s, qkv.dtype, s.heads + 2 * s.kv_heads, name);
  const int64_t queries = s.heads * s.head_width;
  return {qkv.slice(1, 0, queries), qkv.slice(1, queries, 2 * s.kv_heads * s.head_width)};
}

Description describe_join(const Target&, const Op& op) {
  return {.flops = 3.0 * double(op[0].size()), .bytes = operand_bytes(op), .kernels = {"attention_join"}};
}
const OpKind kJoin{"attention_join", describe_join};

} // namespace

Op attention_forward(const AttentionPartForward& f) {
  const AttentionAttributes attributes = attributes_of(f.shape, f.ring);
  ensure_common(f.shape, f.q, f.kv, f.out, f.lse, f.document_start);
  return reading(Op(kForward).write(f.out).write(f.lse), f.q, f.kv, f.document_start, f.ring.state, attributes);
}

Op attention_backward(const AttentionPartBackward& f) {
  const AttentionShape& s = f.shape;
  const AttentionAttributes attributes = attributes_of(s, f.ring);
  ensure_common(s, f.q, f.kv, f.out, f.lse, f.document_start);
  ensure_rows(f.dq, s, f.q.dtype, s.heads, "dq");
  ensure_rows(f.dkv, s, f.q.dtype, 2 * s.kv_heads, "dkv");
  ensure_rows(f.dout, s, f.q.dtype, s.heads, "dout");
  const Op backward = Op(kBackward).write(f.dq).write(f.dkv).read(f.dout).read(f.out).read(f.lse);
  return reading(backward, f.q, f.kv, f.document_start, f.ring.state, attributes);
}

Op attention_forward(const AttentionForward& f) {
  const auto [q, kv] = parts_of(f.shape, f.qkv, "qkv");
  return attention_forward({f.shape, {}, f.out, f.lse, q, kv, f.document_start});
}

Op attention_backward(const AttentionBackward& f) {
  const auto [q, kv] = parts_of(f.shape, f.qkv, "qkv");
  const auto [dq, dkv] = parts_of(f.shape, f.dqkv, "dqkv");
  return attention_backward({f.shape, {}, dq, dkv, f.dout, f.out, f.lse, q, kv, f.document_start});
}

Op attention_join(const AttentionPart& to, const AttentionPart& a, const AttentionPart& b) {
  for (const AttentionPart& p : {to, a, b}) {
    ENSURE(p.out.rank == 2 && p.out.dense() && p.out.dim == to.out.dim &&
               (p.out.dtype == Dtype::f32 || p.out.dtype == Dtype::bf16),
           "attention_join: out is ", p.out.describe());
    ENSURE(is(p.lse, Dtype::f32, {to.lse.dim[0], to.lse.dim[1], to.lse.dim[2]}) && p.lse.dense() &&
               to.lse.dim[0] * to.lse.dim[2] == to.out.dim[0] && to.out.dim[1] % to.lse.dim[1] == 0,
           "attention_join: lse is ", p.lse.describe());
  }
  ENSURE(to.lse.address != a.lse.address && to.lse.address != b.lse.address, "attention_join: lse in place");
  Op op(kJoin);
  if (to.out.address == a.out.address)
    op.update(to.out).write(to.lse).read({});
  else
    op.write(to.out).write(to.lse).read(a.out);
  return op.read(a.lse).read(b.out).read(b.lse);
}

} // namespace triax
