#include "model/decoder.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/head_norm.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "model/rope.h"
#include <algorithm>
#include <cmath>

namespace triax {
namespace {

/// Rows of logits that exist at once: enough for an efficient product, few enough to stay small beside the activations.
int64_t chunk_rows(int64_t vocabulary, Dtype dtype) {
  constexpr int64_t kBytes = int64_t(64) << 20, kStep = 64;
  return std::max(kStep, kBytes / (vocabulary * bytes_of(dtype)) / kStep * kStep);
}

} // namespace

Decoder::Decoder(Device& device, const ModelConfig& config, const ParamTable& table, int64_t sequence,
                 Parameters& parameters, const TensorParallel& tensor, const ContextParallel& context)
    : device_(device), config_(config), table_(table), parameters_(parameters), tensor_(tensor), context_(context),
      heads_(config.heads / tensor.size()), kv_heads_(config.kv_heads * table.cut().copies / tensor.size()),
      mlp_(config.mlp / tensor.size()), dtype_(parameters.dtype()), sequence_(sequence) {
  ENSURE(table.cut().tensor == tensor.size(), "the table is cut for ", table.cut().tensor, " ranks, the group has ",
         tensor.size());
  if (config.position == Position::rope)
    angles_ = device.persistent("rope angles", Purpose::weights, Dtype::f32, {sequence, config.head_width});
  else if (context_.size() > 1)
    positions_ = device.persistent("positions", Purpose::weights, Dtype::i32, {sequence});
}

void Decoder::initialise() {
  const std::vector<int32_t> positions = context_.positions(sequence_);
  if (!angles_.empty()) device_.write(angles_, rope_table(config_.rope, config_.head_width, positions).data());
  if (!positions_.empty()) device_.write(positions_, positions.data());
}

void Decoder::train(const Inputs& in, const Tensor& scalars, float scale) {
  Pass pass;
  forward(all(), in, pass);
  backward(all(), in, pass, scalars, scale);
}

void Decoder::evaluate(const Inputs& in, const Tensor& scalars) {
  Pass pass;
  evaluate(all(), in, pass, scalars);
}

void Decoder::evaluate(const LayerRange& range, const Inputs& in, Pass& pass, const Tensor& scalars) {
  forward(range, in, pass, false);
  if (range.head) losses(in, pass.final.hidden, scalars, 0.0f, false);
  pass.final = {};
}

int64_t Decoder::observed_bytes(int64_t rows) const {
  const auto bytes = [](int64_t n, Dtype dtype) { return aligned(n * bytes_of(dtype)); };
  const int64_t stream = bytes(rows / tensor_.size() * config_.width, dtype_);
  const int64_t layer = 2 * stream + bytes(rows * heads_ * config_.head_width, dtype_) + bytes(rows * mlp_, dtype_);
  return 2 * (config_.layers * layer + 2 * stream) + bytes(rows, Dtype::f32);
}

void Decoder::predict(const Inputs& in, const Tensor& rows, const Tensor& logits) {
  Pass pass;
  forward(all(), in, pass, false);
  const Allocation last = activations("rows to predict from", rows.dim[0], config_.width);
  device_.compute().run(embedding_forward(last, rows, pass.final.hidden, {})); // a table look-up is a gather of rows
  const Tensor unit = parameters_.weights(head_unit(), -1);
  tensor_.columns(logits, last, outside(unit, head_role()), {});
  parameters_.done(head_unit());
}

void Decoder::embed(const Inputs& in, const Tensor& stream, int next) {
  const Tensor unit = position_unit() < 0 ? Tensor{} : parameters_.weights(position_unit(), embedding_unit());
  const Tensor positions = first_positions(unit, in);
  const Tensor table = outside(parameters_.weights(embedding_unit(), next), Role::embedding);
  const auto look_up = [&](const Tensor& to) {
    device_.compute().run(embedding_forward(to, in.tokens, table, positions, tensor_.state(), positions_));
  };
  if (tensor_.size() == 1) {
    look_up(stream);
  } else {
    const Allocation part = activations("embedded part", in.batch * in.sequence, config_.width);
    look_up(part);
    tensor_.scatter(stream, part);
  }
  parameters_.done(embedding_unit());
  if (position_unit() >= 0) parameters_.done(position_unit());
}

void Decoder::forward(const LayerRange& range, const Inputs& in, Pass& pass, bool keep) {
  const int64_t N = own_rows(in), C = config_.width;
  Tensor stream;
  Allocation branch;
  pass.kept.resize(size_t(keep ? range.count : 2));
  for (int64_t i = 0; i < range.count; ++i) {
    const int64_t l = range.first + i;
    Kept& k = pass.kept[size_t(keep ? i : i % 2)];
    k = {};
    if (i == 0) k.stream1 = enter(range, in, pass);
    const int next = i + 1 < range.count ? layer_unit(l + 1) : range.head ? norm_unit() : -1;
    branch = layer_forward(l, next, in, stream, std::move(branch), k);
    if (keep) show_layer(l, k);
    stream = k.stream2;
  }
  if (range.head) {
    pass.final = finish(in, stream, branch, range.count > 0 ? Allocation{} : enter(range, in, pass));
    if (keep) {
      show(kFinalStream, -1, false, Parted::rows, pass.final.stream);
      show(kFinalNorm, -1, false, Parted::rows, pass.final.hidden);
    }
  } else if (range.count == 0) {
    pass.leaving = enter(range, in, pass);
  } else {
    pass.leaving = activations("leaving stream", N, C);
    device_.compute().run(add(pass.leaving, stream, branch));
  }
  if (!keep) pass.kept.clear();
}

Allocation Decoder::enter(const LayerRange& range, const Inputs& in, Pass& pass) {
  if (!range.embedding) return std::move(pass.entering);
  Allocation embedded = activations("embedded", own_rows(in), config_.width);
  embed(in, embedded, range.count > 0 ? layer_unit(range.first) : -1);
  return embedded;
}

Decoder::Final Decoder::finish(const Inputs& in, const Tensor& stream, const Tensor& branch, Allocation alone) {
  const int64_t N = own_rows(in), C = config_.width;
  Final final;
  const bool joins = alone->empty();
  final.stream = joins ? activations("final stream", N, C) : std::move(alone);
  final.statistics = statistics(N);
  final.hidden = activations("final norm", N, C);
  const Tensor unit = parameters_.weights(norm_unit(), head_unit());
  normalise(final.hidden, joins ? *final.stream : Tensor{}, final.statistics, joins ? stream : *final.stream, branch,
            outside(unit, Role::final_norm), outside(unit, Role::final_norm_bias));
  parameters_.done(norm_unit());
  return final;
}

Allocation Decoder::layer_forward(int64_t l, int next, const Inputs& in, const Tensor& stream, Allocation branch,
                                  Kept& k) {
  const int64_t N = in.batch * in.sequence, own = own_rows(in), C = config_.width, D = config_.head_width;
  const LayerTensors w = layer_weights(l, next);
  Stream compute = device_.compute();

  k.statistics1 = statistics(own);
  k.norm1 = activations("norm1", own, C);
  if (!k.stream1->empty()) {
    normalise(k.norm1, {}, k.statistics1, k.stream1, {}, w.norm1, w.norm1_bias);
  } else {
    k.stream1 = activations("stream1", own, C);
    normalise(k.norm1, k.stream1, k.statistics1, stream, branch, w.norm1, w.norm1_bias);
    branch.release();
  }
  k.qkv = activations("qkv", N, (heads_ + 2 * kv_heads_) * D);
  tensor_.columns(k.qkv, k.norm1, w.qkv, w.qkv_bias);
  normalise_heads(k.qkv, k.heads, w.qk_norm);
  turn(k.qkv, false);
  k.attention = activations("attention", N, heads_ * D);
  k.in_attention = context_.forward(attention_shape(in, l), k.attention, k.qkv, in.document_start);
  Allocation projected = activations("attention projected", own, C);
  tensor_.rows(projected, k.attention, w.out, w.out_bias);

  k.stream2 = activations("stream2", own, C);
  k.statistics2 = statistics(own);
  k.norm2 = activations("norm2", own, C);
  normalise(k.norm2, k.stream2, k.statistics2, k.stream1, projected, w.norm2, w.norm2_bias);
  projected.release();
  k.up = activations("mlp up", N, w.up.dim[0]);
  tensor_.columns(k.up, k.norm2, w.up, w.up_bias);
  k.activated = activations("mlp activated", N, mlp_);
  compute.run(gated() ? swiglu_forward(k.activated, k.up) : gelu_forward(k.activated, k.up, gelu()));
  Allocation down = activations("mlp down", own, C);
  tensor_.rows(down, k.activated, w.down, w.down_bias);
  layer_done(l);
  return down;
}

Allocation Decoder::losses(const Inputs& in, const Tensor& hidden, const Tensor& scalars, float scale, bool backward) {
  const int64_t N = in.batch * in.sequence, C = config_.width;
  const Tensor unit = parameters_.weights(head_unit(), backward ? norm_unit() : -1);
  const Tensor head = outside(unit, head_role());
  const Tensor dhead = backward ? outside(parameters_.gradients(head_unit()), head_role()) : Tensor{};
  const int64_t V = head.dim[0], rows = std::min(N, chunk_rows(V, dtype_));
  Stream compute = device_.compute();
  const auto whole = tensor_.gather(hidden);
  const Tensor& all = whole;
  const Allocation losses = device_.allocate("losses", Purpose::activations, Dtype::f32, {N});
  const Allocation logits = device_.allocate("logits", Purpose::logits, dtype_, {rows, V});
  Allocation dhidden;
  if (backward) dhidden = activations("d hidden", N, C);
  for (int64_t first = 0; first < N; first += rows) {
    const int64_t n = std::min(rows, N - first);
    const Tensor x = all.slice(0, first, n), z = logits->slice(0, 0, n);
    compute.run(matmul({.c = z, .a = x, .b = head, .transpose_b = true}));
    loss_of_chunk(losses->slice(0, first, n), z, in.labels.slice(0, first, n), scale, backward);
    if (!backward) continue;
    compute.run(matmul({.c = dhead, .a = z, .b = x, .transpose_a = true, .accumulate = true}));
    compute.run(matmul({.c = dhidden->slice(0, first, n), .a = z, .b = head}));
  }
  parameters_.done(head_unit());
  if (backward) show("losses", -1, false, Parted::whole, losses);
  compute.run(sum_losses(scalars, losses, in.labels));
  if (!backward || tensor_.size() == 1) return dhidden;
  Allocation own = activations("d hidden of own rows", own_rows(in), C);
  tensor_.scatter(own, dhidden);
  return own;
}

void Decoder::loss_of_chunk(const Tensor& losses, const Tensor& logits, const Tensor& labels, float scale,
                            bool backward) {
  Stream compute = device_.compute();
  if (tensor_.size() == 1) return compute.run(cross_entropy(losses, logits, labels, scale, backward));
  const int64_t n = losses.dim[0], V = config_.vocabulary;
  const auto floats = [&](const char* name, int64_t ranks) {
    return device_.allocate(name, Purpose::communication, Dtype::f32, {ranks, n, 3});
  };
  const Allocation own = floats("softmax statistics", 1), all = floats("softmax statistics of all", tensor_.size());
  compute.run(softmax_statistics(own->view({n, 3}), logits, labels, tensor_.state(), V));
  tensor_.gather_into(all, own);
  compute.run(cross_entropy_parts(losses, logits, labels, all, tensor_.state(), V, scale, backward));
}

void Decoder::show_layer(int64_t l, const Kept& k) const {
  show(kIntoAttention, l, false, Parted::rows, k.stream1);
  show(kAttention, l, false, Parted::columns, k.attention);
  show(kIntoMlp, l, false, Parted::rows, k.stream2);
  show(kActivated, l, false, Parted::columns, k.activated);
}

LayerTensors Decoder::layer_weights(int64_t l, int next) {
  const Tensor unit = parameters_.weights(layer_unit(l), next);
  return layer_tensors(l, unit, bias_unit(l) < 0 ? unit : parameters_.weights(bias_unit(l), -1));
}

void Decoder::layer_done(int64_t l) {
  parameters_.done(layer_unit(l));
  if (const int bias = bias_unit(l); bias >= 0) parameters_.done(bias);
}

LayerTensors Decoder::layer_tensors(int64_t l, const Tensor& unit, const Tensor& biases) const {
  const auto own = [&](Role role) { return view_of(unit, table_, table_.find(role, l)); };
  const auto bias = [&](Role role) { return view_of(biases, table_, table_.find(role, l)); };
  return {own(Role::norm1),    own(Role::norm1_bias), own(Role::qkv),      bias(Role::qkv_bias),  own(Role::qk_norm),
          own(Role::out),      own(Role::out_bias),   own(Role::norm2),    own(Role::norm2_bias), own(Role::up),
          bias(Role::up_bias), own(Role::down),       own(Role::down_bias)};
}

int Decoder::bias_unit(int64_t l) const {
  const int unit =
      table_.find(Role::qkv_bias, l) ? table_.unit_of(Role::qkv_bias, l) : table_.unit_of(Role::up_bias, l);
  return unit == layer_unit(l) ? -1 : unit;
}

AttentionShape Decoder::attention_shape(const Inputs& in, int64_t layer) const {
  const float scale = float(1 / std::sqrt(double(config_.head_width)));
  return {in.batch, in.sequence, heads_, kv_heads_, config_.head_width, scale, window_of(config_, layer), in.documents};
}

void Decoder::normalise(const Tensor& y, const Tensor& sum, const Tensor& statistics, const Tensor& x,
                        const Tensor& residual, const Tensor& weight, const Tensor& bias) {
  device_.compute().run(
      norm_forward({norm_kind(), float(config_.norm_eps), y, sum, statistics, x, residual, weight, bias}));
}

Allocation Decoder::activations(const char* name, int64_t rows, int64_t columns) {
  return device_.allocate(name, Purpose::activations, dtype_, {rows, columns});
}

Allocation Decoder::statistics(int64_t rows) {
  return device_.allocate("norm statistics", Purpose::activations, Dtype::f32, {rows, 2});
}

Tensor Decoder::queries_and_keys(const Tensor& qkv) const {
  return qkv.slice(1, 0, (heads_ + kv_heads_) * config_.head_width);
}

void Decoder::normalise_heads(const Tensor& qkv, Allocation& before, const Tensor& weight) {
  if (weight.empty()) return;
  const Tensor heads = queries_and_keys(qkv);
  before = activations("heads before norm", heads.dim[0], heads.dim[1]);
  device_.compute().run(head_norm_forward({heads_, float(config_.norm_eps), heads, before, weight}));
}

void Decoder::turn(const Tensor& qkv, bool inverse) {
  if (angles_.empty()) return;
  device_.compute().run(rope(queries_and_keys(qkv), angles_, config_.head_width, inverse));
}

} // namespace triax
