#include "model/decoder.h"
#include "kernels/attention.h"
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

LayerTensors layer_tensors(const Tensor& flat, const ParamTable& table, int64_t l) {
  const auto at = [&](Role role) { return view_of(flat, table.find(role, l)); };
  return {at(Role::norm1),   at(Role::norm1_bias), at(Role::qkv),      at(Role::qkv_bias),   at(Role::qk_norm),
          at(Role::out),     at(Role::out_bias),   at(Role::norm2),    at(Role::norm2_bias), at(Role::up),
          at(Role::up_bias), at(Role::down),       at(Role::down_bias)};
}

AttentionShape attention_shape(const ModelConfig& c, const Inputs& in, int64_t layer) {
  const float scale = float(1 / std::sqrt(double(c.head_width)));
  return {in.batch, in.sequence, c.heads, c.kv_heads, c.head_width, scale, window_of(c, layer), in.documents};
}

/// Learned positions [0, T) of the table or its gradient; empty where there is none.
Tensor first_positions(const Tensor& table, const Inputs& in) {
  return table.empty() ? table : table.slice(0, 0, in.sequence);
}

NormKind norm_kind(const ModelConfig& c) { return c.norm == Norm::rms ? NormKind::rms : NormKind::layer; }

/// Rows of logits that exist at once: enough for an efficient product, few enough to stay small beside the activations.
int64_t chunk_rows(int64_t vocabulary, Dtype dtype) {
  constexpr int64_t kBytes = int64_t(64) << 20, kStep = 64;
  return std::max(kStep, kBytes / (vocabulary * bytes_of(dtype)) / kStep * kStep);
}

} // namespace

Decoder::Decoder(Device& device, const ModelConfig& config, const ParamTable& table, int64_t sequence,
                 const Tensor& weights, const Tensor& gradients)
    : device_(device), config_(config), dtype_(weights.dtype), sequence_(sequence) {
  const auto both = [&](Role role, Tensor& weight, Tensor& gradient) {
    weight = view_of(weights, table.find(role));
    gradient = view_of(gradients, table.find(role));
  };
  both(Role::embedding, embedding_, dembedding_);
  both(Role::positions, positions_, dpositions_);
  both(Role::final_norm, final_norm_, dfinal_norm_);
  both(Role::final_norm_bias, final_norm_bias_, dfinal_norm_bias_);
  both(config.tied ? Role::embedding : Role::head, head_, dhead_);
  head_offset_ = config.tied ? table.decayed_elements() : table.find(Role::head)->offset;
  for (int64_t l = 0; l < config.layers; ++l) {
    weights_.push_back(layer_tensors(weights, table, l));
    gradients_.push_back(layer_tensors(gradients, table, l));
    layer_offset_.push_back(table.find(Role::qkv, l)->offset);
  }
  if (config.position == Position::rope)
    angles_ = device.persistent("rope angles", Purpose::weights, Dtype::f32, {sequence, config.head_width});
}

void Decoder::initialise() {
  if (!angles_.empty()) device_.write(angles_, rope_table(config_.rope, config_.head_width, sequence_).data());
}

void Decoder::train(const Inputs& in, const Tensor& scalars, float scale, const FinishedDownTo& finished) {
  std::vector<Kept> kept(static_cast<size_t>(config_.layers));
  Final final = forward(in, kept, true);
  Allocation dhidden = losses(in, final.hidden, scalars, scale, true);
  if (!config_.tied) finished(head_offset_);

  Allocation dstream = activations("d stream", in.batch * in.sequence, config_.width);
  normalise_backward(dstream, dfinal_norm_, dfinal_norm_bias_, dhidden, {}, final.stream, final.statistics,
                     final_norm_);
  dhidden.release();
  final = {};
  for (int64_t l = config_.layers - 1; l >= 0; --l) {
    layer_backward(l, in, std::move(kept[size_t(l)]), dstream);
    finished(layer_offset_[size_t(l)]);
  }
  device_.compute().run(
      embedding_backward(dembedding_, first_positions(dpositions_, in), dstream, in.tokens, in.order));
  finished(0);
}

void Decoder::evaluate(const Inputs& in, const Tensor& scalars) {
  std::vector<Kept> kept(2);
  const Final final = forward(in, kept, false);
  losses(in, final.hidden, scalars, 0.0f, false);
}

void Decoder::predict(const Inputs& in, const Tensor& rows, const Tensor& logits) {
  std::vector<Kept> kept(2);
  const Final final = forward(in, kept, false);
  const Allocation last = activations("rows to predict from", rows.dim[0], config_.width);
  device_.compute().run(embedding_forward(last, rows, final.hidden, {})); // a table look-up is a gather of rows
  linear(logits, last, head_, {});
}

Decoder::Final Decoder::forward(const Inputs& in, std::vector<Kept>& kept, bool keep) {
  const int64_t N = in.batch * in.sequence, C = config_.width;
  Tensor stream;
  Allocation branch;
  for (int64_t l = 0; l < config_.layers; ++l) {
    Kept& k = kept[size_t(keep ? l : l % 2)];
    k = {};
    if (l == 0) {
      k.stream1 = activations("embedded", N, C);
      device_.compute().run(embedding_forward(k.stream1, in.tokens, embedding_, first_positions(positions_, in)));
    }
    branch = layer_forward(l, in, stream, std::move(branch), k);
    stream = k.stream2;
  }
  Final final;
  final.stream = activations("final stream", N, C);
  final.statistics = statistics(N);
  final.hidden = activations("final norm", N, C);
  normalise(final.hidden, final.stream, final.statistics, stream, branch, final_norm_, final_norm_bias_);
  return final;
}

Allocation Decoder::layer_forward(int64_t l, const Inputs& in, const Tensor& stream, Allocation branch, Kept& k) {
  const int64_t N = in.batch * in.sequence, C = config_.width, D = config_.head_width, H = config_.heads,
                G = config_.kv_heads;
  const LayerTensors& w = weights_[size_t(l)];
  Stream compute = device_.compute();

  k.statistics1 = statistics(N);
  k.norm1 = activations("norm1", N, C);
  if (l == 0) {
    normalise(k.norm1, {}, k.statistics1, k.stream1, {}, w.norm1, w.norm1_bias);
  } else {
    k.stream1 = activations("stream1", N, C);
    normalise(k.norm1, k.stream1, k.statistics1, stream, branch, w.norm1, w.norm1_bias);
    branch.release();
  }
  k.qkv = activations("qkv", N, (H + 2 * G) * D);
  linear(k.qkv, k.norm1, w.qkv, w.qkv_bias);
  normalise_heads(k.qkv, k.heads, w.qk_norm);
  turn(k.qkv, false);
  k.attention = activations("attention", N, H * D);
  k.lse = device_.allocate("attention lse", Purpose::activations, Dtype::f32, {in.batch, H, in.sequence});
  compute.run(attention_forward({attention_shape(config_, in, l), k.attention, k.lse, k.qkv, in.document_start}));
  Allocation projected = activations("attention projected", N, C);
  linear(projected, k.attention, w.out, w.out_bias);

  k.stream2 = activations("stream2", N, C);
  k.statistics2 = statistics(N);
  k.norm2 = activations("norm2", N, C);
  normalise(k.norm2, k.stream2, k.statistics2, k.stream1, projected, w.norm2, w.norm2_bias);
  projected.release();
  k.up = activations("mlp up", N, w.up.dim[0]);
  linear(k.up, k.norm2, w.up, w.up_bias);
  k.activated = activations("mlp activated", N, config_.mlp);
  compute.run(gated() ? swiglu_forward(k.activated, k.up) : gelu_forward(k.activated, k.up, gelu()));
  Allocation down = activations("mlp down", N, C);
  linear(down, k.activated, w.down, w.down_bias);
  return down;
}

void Decoder::layer_backward(int64_t l, const Inputs& in, Kept k, const Tensor& dstream) {
  const int64_t N = in.batch * in.sequence, C = config_.width, D = config_.head_width, H = config_.heads,
                G = config_.kv_heads;
  const LayerTensors &w = weights_[size_t(l)], &d = gradients_[size_t(l)];
  Stream compute = device_.compute();

  Allocation dactivated = activations("d mlp activated", N, config_.mlp);
  linear_backward(dactivated, d.down, d.down_bias, dstream, k.activated, w.down);
  k.activated.release();
  Allocation dup = activations("d mlp up", N, w.up.dim[0]);
  compute.run(gated() ? swiglu_backward(dup, dactivated, k.up) : gelu_backward(dup, dactivated, k.up, gelu()));
  dactivated.release();
  k.up.release();
  Allocation dnorm = activations("d norm2", N, C);
  linear_backward(dnorm, d.up, d.up_bias, dup, k.norm2, w.up);
  dup.release();
  normalise_backward(dstream, d.norm2, d.norm2_bias, dnorm, dstream, k.stream2, k.statistics2, w.norm2);

  Allocation dattention = activations("d attention", N, H * D);
  linear_backward(dattention, d.out, d.out_bias, dstream, k.attention, w.out);
  Allocation dqkv = activations("d qkv", N, (H + 2 * G) * D);
  compute.run(attention_backward(
      {attention_shape(config_, in, l), dqkv, dattention, k.attention, k.lse, k.qkv, in.document_start}));
  dattention.release();
  turn(dqkv, true);
  normalise_heads_backward(dqkv, d.qk_norm, std::move(k.heads), w.qk_norm);
  linear_backward(dnorm, d.qkv, d.qkv_bias, dqkv, k.norm1, w.qkv);
  dqkv.release();
  normalise_backward(dstream, d.norm1, d.norm1_bias, dnorm, dstream, k.stream1, k.statistics1, w.norm1);
}

Allocation Decoder::losses(const Inputs& in, const Tensor& hidden, const Tensor& scalars, float scale, bool backward) {
  const int64_t N = in.batch * in.sequence, V = config_.vocabulary, rows = std::min(N, chunk_rows(V, dtype_));
  Stream compute = device_.compute();
  const Allocation losses = device_.allocate("losses", Purpose::activations, Dtype::f32, {N});
  const Allocation logits = device_.allocate("logits", Purpose::logits, dtype_, {rows, V});
  Allocation dhidden;
  if (backward) dhidden = activations("d hidden", N, config_.width);
  for (int64_t first = 0; first < N; first += rows) {
    const int64_t n = std::min(rows, N - first);
    const Tensor x = hidden.slice(0, first, n), z = logits->slice(0, 0, n);
    linear(z, x, head_, {});
    compute.run(cross_entropy(losses->slice(0, first, n), z, in.labels.slice(0, first, n), scale, backward));
    if (backward) linear_backward(dhidden->slice(0, first, n), dhead_, {}, z, x, head_);
  }
  compute.run(sum_losses(scalars, losses, in.labels));
  return dhidden;
}

void Decoder::linear(const Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  device_.compute().run(matmul({.c = y, .a = x, .b = weight, .bias = bias, .transpose_b = true}));
}

void Decoder::linear_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                              const Tensor& x, const Tensor& weight) {
  Stream compute = device_.compute();
  compute.run(matmul({.c = dweight, .a = dy, .b = x, .transpose_a = true, .accumulate = true}));
  if (!dbias.empty()) compute.run(column_sum(dbias, dy));
  compute.run(matmul({.c = dx, .a = dy, .b = weight}));
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
  return qkv.slice(1, 0, (config_.heads + config_.kv_heads) * config_.head_width);
}

void Decoder::normalise_heads(const Tensor& qkv, Allocation& before, const Tensor& weight) {
  if (weight.empty()) return;
  const Tensor heads = queries_and_keys(qkv);
  before = activations("heads before norm", heads.dim[0], heads.dim[1]);
  device_.compute().run(head_norm_forward({config_.heads, float(config_.norm_eps), heads, before, weight}));
}

void Decoder::normalise_heads_backward(const Tensor& dqkv, const Tensor& dweight, Allocation before,
                                       const Tensor& weight) {
  if (weight.empty()) return;
  device_.compute().run(
      head_norm_backward({config_.heads, float(config_.norm_eps), queries_and_keys(dqkv), dweight, before, weight}));
}

void Decoder::turn(const Tensor& qkv, bool inverse) {
  if (angles_.empty()) return;
  device_.compute().run(rope(queries_and_keys(qkv), angles_, config_.head_width, inverse));
}

} // namespace triax
