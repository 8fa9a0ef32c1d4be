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

/// A layer's matrices stand in its own unit, its vectors with all others, but for biases that stand alone.
LayerTensors layer_tensors(const Tensor& matrices, const Tensor& bias, const Tensor& vectors, const ParamTable& table,
                           int64_t l) {
  const auto matrix = [&](Role role) { return view_of(matrices, table, table.find(role, l)); };
  const auto vector = [&](Role role) { return view_of(vectors, table, table.find(role, l)); };
  return {vector(Role::norm1),      vector(Role::norm1_bias),
          matrix(Role::qkv),        view_of(bias, table, table.find(Role::qkv_bias, l)),
          vector(Role::qk_norm),    matrix(Role::out),
          vector(Role::out_bias),   vector(Role::norm2),
          vector(Role::norm2_bias), matrix(Role::up),
          vector(Role::up_bias),    matrix(Role::down),
          vector(Role::down_bias)};
}

/// Learned positions [0, T) of the table or its gradient; empty where there is none.
Tensor first_positions(const Tensor& table, const Inputs& in) {
  return table.empty() ? table : table.slice(0, 0, in.sequence);
}

NormKind norm_kind(const ModelConfig& c) { return c.norm == Norm::rms ? NormKind::rms : NormKind::layer; }

// What an observer is shown of a layer and behind the layers, forward; backward, the gradients of the same.
constexpr const char *kIntoAttention = "stream into the attention", *kAttention = "attention of the heads",
                     *kIntoMlp = "stream into the MLP", *kActivated = "activated MLP",
                     *kFinalStream = "stream out of the last layer", *kFinalNorm = "final norm";

/// Rows of logits that exist at once: enough for an efficient product, few enough to stay small beside the activations.
int64_t chunk_rows(int64_t vocabulary, Dtype dtype) {
  constexpr int64_t kBytes = int64_t(64) << 20, kStep = 64;
  return std::max(kStep, kBytes / (vocabulary * bytes_of(dtype)) / kStep * kStep);
}

} // namespace

Decoder::Decoder(Device& device, const ModelConfig& config, const ParamTable& table, int64_t sequence,
                 Parameters& parameters, const TensorParallel& tensor)
    : device_(device), config_(config), table_(table), parameters_(parameters), tensor_(tensor),
      heads_(config.heads / tensor.size()), kv_heads_(config.kv_heads * table.cut().copies / tensor.size()),
      mlp_(config.mlp / tensor.size()), dtype_(parameters.dtype()), sequence_(sequence) {
  ENSURE(table.cut().tensor == tensor.size(), "the table is cut for ", table.cut().tensor, " ranks, the group has ",
         tensor.size());
  if (config.position == Position::rope)
    angles_ = device.persistent("rope angles", Purpose::weights, Dtype::f32, {sequence, config.head_width});
}

void Decoder::initialise() {
  if (!angles_.empty()) device_.write(angles_, rope_table(config_.rope, config_.head_width, sequence_).data());
}

void Decoder::train(const Inputs& in, const Tensor& scalars, float scale) {
  std::vector<Kept> kept(static_cast<size_t>(config_.layers));
  Final final = forward(in, kept, true);
  dvectors_ = parameters_.gradients(vector_unit());
  Allocation dhidden = losses(in, final.hidden, scalars, scale, true);
  show(kFinalNorm, -1, true, Parted::rows, dhidden);
  if (!config_.tied) parameters_.finished(head_unit());

  Allocation dstream = activations("d stream", own_rows(in), config_.width);
  normalise_backward(dstream, outside(dvectors_, Role::final_norm), outside(dvectors_, Role::final_norm_bias), dhidden,
                     {}, final.stream, final.statistics, outside(vectors_, Role::final_norm));
  dhidden.release();
  final = {};
  show(kFinalStream, -1, true, Parted::rows, dstream);
  for (int64_t l = config_.layers - 1; l >= 0; --l) {
    layer_backward(l, in, std::move(kept[size_t(l)]), dstream);
    layer_finished(l);
  }
  parameters_.done(vector_unit());
  embed_backward(in, dstream);
  parameters_.finished(embedding_unit());
  parameters_.finished(vector_unit());
}

int64_t Decoder::observed_bytes(int64_t rows) const {
  const auto bytes = [](int64_t n, Dtype dtype) { return aligned(n * bytes_of(dtype)); };
  const int64_t stream = bytes(rows / tensor_.size() * config_.width, dtype_);
  const int64_t layer = 2 * stream + bytes(rows * heads_ * config_.head_width, dtype_) + bytes(rows * mlp_, dtype_);
  return 2 * (config_.layers * layer + 2 * stream) + bytes(rows, Dtype::f32);
}

void Decoder::evaluate(const Inputs& in, const Tensor& scalars) {
  std::vector<Kept> kept(2);
  const Final final = forward(in, kept, false);
  losses(in, final.hidden, scalars, 0.0f, false);
  parameters_.done(vector_unit());
}

void Decoder::predict(const Inputs& in, const Tensor& rows, const Tensor& logits) {
  std::vector<Kept> kept(2);
  const Final final = forward(in, kept, false);
  const Allocation last = activations("rows to predict from", rows.dim[0], config_.width);
  device_.compute().run(embedding_forward(last, rows, final.hidden, {})); // a table look-up is a gather of rows
  const Tensor unit = parameters_.weights(head_unit(), -1);
  tensor_.columns(logits, last, outside(unit, head_role()), {});
  parameters_.done(head_unit());
  parameters_.done(vector_unit());
}

void Decoder::embed(const Inputs& in, const Tensor& stream) {
  const Tensor weights = parameters_.weights(embedding_unit(), layer_unit(0));
  const Tensor positions = first_positions(outside(weights, Role::positions), in);
  const auto look_up = [&](const Tensor& to) {
    device_.compute().run(
        embedding_forward(to, in.tokens, outside(weights, Role::embedding), positions, tensor_.state()));
  };
  if (tensor_.size() == 1) {
    look_up(stream);
  } else {
    const Allocation part = activations("embedded part", in.batch * in.sequence, config_.width);
    look_up(part);
    tensor_.scatter(stream, part);
  }
  parameters_.done(embedding_unit());
}

void Decoder::embed_backward(const Inputs& in, const Tensor& dstream) {
  const Tensor gradients = parameters_.gradients(embedding_unit());
  const auto whole = tensor_.gather(dstream);
  device_.compute().run(embedding_backward(outside(gradients, Role::embedding),
                                           first_positions(outside(gradients, Role::positions), in), whole, in.tokens,
                                           in.order, tensor_.state()));
}

Decoder::Final Decoder::forward(const Inputs& in, std::vector<Kept>& kept, bool keep) {
  const int64_t N = own_rows(in), C = config_.width;
  Tensor stream;
  Allocation branch;
  vectors_ = parameters_.weights(vector_unit(), embedding_unit());
  for (int64_t l = 0; l < config_.layers; ++l) {
    Kept& k = kept[size_t(keep ? l : l % 2)];
    k = {};
    if (l == 0) {
      k.stream1 = activations("embedded", N, C);
      embed(in, k.stream1);
    }
    branch = layer_forward(l, in, stream, std::move(branch), k);
    if (keep) show_layer(l, k);
    stream = k.stream2;
  }
  Final final;
  final.stream = activations("final stream", N, C);
  final.statistics = statistics(N);
  final.hidden = activations("final norm", N, C);
  normalise(final.hidden, final.stream, final.statistics, stream, branch, outside(vectors_, Role::final_norm),
            outside(vectors_, Role::final_norm_bias));
  if (keep) {
    show(kFinalStream, -1, false, Parted::rows, final.stream);
    show(kFinalNorm, -1, false, Parted::rows, final.hidden);
  }
  return final;
}

Allocation Decoder::layer_forward(int64_t l, const Inputs& in, const Tensor& stream, Allocation branch, Kept& k) {
  const int64_t N = in.batch * in.sequence, own = own_rows(in), C = config_.width, D = config_.head_width;
  const LayerTensors w = layer_weights(l, l + 1 < config_.layers ? layer_unit(l + 1) : head_unit());
  Stream compute = device_.compute();

  k.statistics1 = statistics(own);
  k.norm1 = activations("norm1", own, C);
  if (l == 0) {
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
  k.lse = device_.allocate("attention lse", Purpose::activations, Dtype::f32, {in.batch, heads_, in.sequence});
  compute.run(attention_forward({attention_shape(in, l), k.attention, k.lse, k.qkv, in.document_start}));
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

void Decoder::layer_backward(int64_t l, const Inputs& in, Kept k, const Tensor& dstream) {
  const int64_t N = in.batch * in.sequence, own = own_rows(in), C = config_.width, D = config_.head_width;
  const LayerTensors w = layer_weights(l, l > 0 ? layer_unit(l - 1) : -1), d = layer_gradients(l);
  Stream compute = device_.compute();

  Allocation dactivated = activations("d mlp activated", N, mlp_);
  tensor_.rows_backward(dactivated, d.down, d.down_bias, dstream, k.activated, w.down);
  k.activated.release();
  Allocation dup = activations("d mlp up", N, w.up.dim[0]);
  show(kActivated, l, true, Parted::columns, dactivated);
  compute.run(gated() ? swiglu_backward(dup, dactivated, k.up) : gelu_backward(dup, dactivated, k.up, gelu()));
  dactivated.release();
  k.up.release();
  Allocation dnorm = activations("d norm2", own, C);
  tensor_.columns_backward(dnorm, d.up, d.up_bias, dup, k.norm2, w.up);
  dup.release();
  normalise_backward(dstream, d.norm2, d.norm2_bias, dnorm, dstream, k.stream2, k.statistics2, w.norm2);
  show(kIntoMlp, l, true, Parted::rows, dstream);

  Allocation dattention = activations("d attention", N, heads_ * D);
  tensor_.rows_backward(dattention, d.out, d.out_bias, dstream, k.attention, w.out);
  show(kAttention, l, true, Parted::columns, dattention);
  Allocation dqkv = activations("d qkv", N, (heads_ + 2 * kv_heads_) * D);
  compute.run(
      attention_backward({attention_shape(in, l), dqkv, dattention, k.attention, k.lse, k.qkv, in.document_start}));
  dattention.release();
  turn(dqkv, true);
  normalise_heads_backward(dqkv, d.qk_norm, std::move(k.heads), w.qk_norm);
  tensor_.columns_backward(dnorm, d.qkv, d.qkv_bias, dqkv, k.norm1, w.qkv);
  dqkv.release();
  normalise_backward(dstream, d.norm1, d.norm1_bias, dnorm, dstream, k.stream1, k.statistics1, w.norm1);
  show(kIntoAttention, l, true, Parted::rows, dstream);
  layer_done(l);
}

Allocation Decoder::losses(const Inputs& in, const Tensor& hidden, const Tensor& scalars, float scale, bool backward) {
  const int64_t N = in.batch * in.sequence, C = config_.width;
  const Tensor unit = parameters_.weights(head_unit(), backward ? layer_unit(config_.layers - 1) : -1);
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

LayerTensors Decoder::layer_weights(int64_t l, int64_t next) {
  const int bias = bias_unit(l);
  const Tensor alone = bias < 0 ? vectors_ : parameters_.weights(bias, -1);
  return layer_tensors(parameters_.weights(layer_unit(l), int(next)), alone, vectors_, table_, l);
}

LayerTensors Decoder::layer_gradients(int64_t l) {
  const int bias = bias_unit(l);
  const Tensor alone = bias < 0 ? dvectors_ : parameters_.gradients(bias);
  return layer_tensors(parameters_.gradients(layer_unit(l)), alone, dvectors_, table_, l);
}

void Decoder::layer_done(int64_t l) {
  parameters_.done(layer_unit(l));
  if (const int bias = bias_unit(l); bias >= 0) parameters_.done(bias);
}

void Decoder::layer_finished(int64_t l) {
  parameters_.finished(layer_unit(l));
  if (const int bias = bias_unit(l); bias >= 0) parameters_.finished(bias);
}

int Decoder::bias_unit(int64_t l) const {
  const Parameter* bias = table_.find(Role::qkv_bias, l);
  return bias && bias->unit != vector_unit() ? bias->unit : -1;
}

AttentionShape Decoder::attention_shape(const Inputs& in, int64_t layer) const {
  const float scale = float(1 / std::sqrt(double(config_.head_width)));
  return {in.batch, in.sequence, heads_, kv_heads_, config_.head_width, scale, window_of(config_, layer), in.documents};
}

void Decoder::normalise(const Tensor& y, const Tensor& sum, const Tensor& statistics, const Tensor& x,
                        const Tensor& residual, const Tensor& weight, const Tensor& bias) {
  device_.compute().run(
      norm_forward({norm_kind(config_), float(config_.norm_eps), y, sum, statistics, x, residual, weight, bias}));
}

void Decoder::normalise_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                                 const Tensor& dresidual, const Tensor& x, const Tensor& statistics,
                                 const Tensor& weight) {
  device_.compute().run(norm_backward({norm_kind(config_), dx, dweight, dbias, dy, dresidual, x, statistics, weight}));
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

void Decoder::normalise_heads_backward(const Tensor& dqkv, const Tensor& dweight, Allocation before,
                                       const Tensor& weight) {
  if (weight.empty()) return;
  device_.compute().run(
      head_norm_backward({heads_, float(config_.norm_eps), queries_and_keys(dqkv), dweight, before, weight}));
}

void Decoder::turn(const Tensor& qkv, bool inverse) {
  if (angles_.empty()) return;
  device_.compute().run(rope(queries_and_keys(qkv), angles_, config_.head_width, inverse));
}

} // namespace triax
