// The backward pass of the model, in the order in which it runs.
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/head_norm.h"
#include "kernels/norm.h"
#include "model/decoder.h"

namespace triax {

void Decoder::backward(const LayerRange& range, const Inputs& in, Pass& pass, const Tensor& scalars, float scale,
                       Weights weights) {
  if (range.head) {
    Allocation dhidden = losses(in, pass.final.hidden, scalars, scale, true);
    show(kFinalNorm, -1, true, Parted::rows, dhidden);
    if (head_unit() != embedding_unit()) parameters_.finished(head_unit());
    const Tensor w = parameters_.weights(norm_unit(), range.count > 0 ? layer_unit(range.first + range.count - 1) : -1),
                 d = parameters_.gradients(norm_unit());
    pass.gradient = activations("d stream", own_rows(in), config_.width);
    normalise_backward(pass.gradient, outside(d, Role::final_norm), outside(d, Role::final_norm_bias), dhidden, {},
                       pass.final.stream, pass.final.statistics, outside(w, Role::final_norm));
    parameters_.done(norm_unit());
    parameters_.finished(norm_unit());
    pass.final = {};
    show(kFinalStream, -1, true, Parted::rows, pass.gradient);
  }
  const bool late = weights == Weights::late;
  if (late) pass.late.resize(size_t(range.count));
  for (int64_t i = range.count - 1; i >= 0; --i) {
    const int64_t l = range.first + i;
    layer_backward(l, i > 0 ? layer_unit(l - 1) : -1, in, std::move(pass.kept[size_t(i)]), pass.gradient,
                   late ? &pass.late[size_t(i)] : nullptr);
    if (!late) layer_finished(l);
  }
  if (!range.embedding) return;
  embed_backward(in, pass.gradient);
  pass.gradient.release();
}

void Decoder::finish_weights(const LayerRange& range, Pass& pass) {
  for (int64_t i = range.count - 1; i >= 0; --i) {
    const LayerTensors d = layer_gradients(range.first + i);
    const Late k = std::exchange(pass.late[size_t(i)], {});
    tensor_.rows_weights(d.down, k.ddown, k.activated);
    tensor_.columns_weights(d.up, k.dup, k.norm2);
    tensor_.rows_weights(d.out, k.dprojected, k.attention);
    tensor_.columns_weights(d.qkv, k.dqkv, k.norm1);
    layer_finished(range.first + i);
  }
}

void Decoder::layer_backward(int64_t l, int next, const Inputs& in, Kept k, Allocation& dstream, Late* late) {
  const int64_t N = in.batch * in.sequence, own = own_rows(in), C = config_.width, D = config_.head_width;
  const LayerTensors w = layer_weights(l, next);
  LayerTensors d = layer_gradients(l);
  if (late) d.qkv = d.out = d.up = d.down = {};
  Stream compute = device_.compute();

  Allocation dactivated = activations("d mlp activated", N, mlp_);
  tensor_.rows_backward(dactivated, d.down, d.down_bias, dstream, k.activated, w.down);
  late ? void(late->activated = std::move(k.activated)) : k.activated.release();
  Allocation dup = activations("d mlp up", N, w.up.dim[0]);
  show(kActivated, l, true, Parted::columns, dactivated);
  compute.run(gated() ? swiglu_backward(dup, dactivated, k.up) : gelu_backward(dup, dactivated, k.up, gelu()));
  dactivated.release();
  k.up.release();
  Allocation dnorm = activations("d norm2", own, C);
  // The products for weights need what enters a norm's backward pass, late.
  const auto through_norm = [&](const Tensor& dweight, const Tensor& dbias, const Tensor& x, const Tensor& statistics,
                                const Tensor& weight, Allocation* entered) {
    Allocation out = entered ? activations("d stream", own, C) : Allocation{};
    normalise_backward(entered ? *out : *dstream, dweight, dbias, dnorm, dstream, x, statistics, weight);
    if (entered) *entered = std::exchange(dstream, std::move(out));
  };
  tensor_.columns_backward(dnorm, d.up, d.up_bias, dup, k.norm2, w.up);
  if (late) late->dup = std::move(dup), late->norm2 = std::move(k.norm2);
  dup.release();
  through_norm(d.norm2, d.norm2_bias, k.stream2, k.statistics2, w.norm2, late ? &late->ddown : nullptr);
  show(kIntoMlp, l, true, Parted::rows, dstream);

  Allocation dattention = activations("d attention", N, heads_ * D);
  tensor_.rows_backward(dattention, d.out, d.out_bias, dstream, k.attention, w.out);
  show(kAttention, l, true, Parted::columns, dattention);
  Allocation dqkv = activations("d qkv", N, (heads_ + 2 * kv_heads_) * D);
  context_.backward(attention_shape(in, l), dqkv, dattention, k.attention, k.qkv, in.document_start,
                    std::move(k.in_attention));
  dattention.release();
  if (late) late->attention = std::move(k.attention);
  turn(dqkv, true);
  normalise_heads_backward(dqkv, d.qk_norm, std::move(k.heads), w.qk_norm);
  tensor_.columns_backward(dnorm, d.qkv, d.qkv_bias, dqkv, k.norm1, w.qkv);
  if (late) late->dqkv = std::move(dqkv), late->norm1 = std::move(k.norm1);
  dqkv.release();
  through_norm(d.norm1, d.norm1_bias, k.stream1, k.statistics1, w.norm1, late ? &late->dprojected : nullptr);
  show(kIntoAttention, l, true, Parted::rows, dstream);
  layer_done(l);
}

void Decoder::embed_backward(const Inputs& in, const Tensor& dstream) {
  const Tensor d = parameters_.gradients(embedding_unit());
  const Tensor dpositions = position_unit() < 0 ? Tensor{} : parameters_.gradients(position_unit());
  const auto whole = tensor_.gather(dstream);
  device_.compute().run(embedding_backward(outside(d, Role::embedding), first_positions(dpositions, in), whole,
                                           in.tokens, in.order, tensor_.state(), positions_));
  parameters_.finished(embedding_unit());
  if (position_unit() >= 0) parameters_.finished(position_unit());
}

LayerTensors Decoder::layer_gradients(int64_t l) {
  const Tensor unit = parameters_.gradients(layer_unit(l));
  return layer_tensors(l, unit, bias_unit(l) < 0 ? unit : parameters_.gradients(bias_unit(l)));
}

void Decoder::layer_finished(int64_t l) {
  parameters_.finished(layer_unit(l));
  if (const int bias = bias_unit(l); bias >= 0) parameters_.finished(bias);
}

void Decoder::normalise_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                                 const Tensor& dresidual, const Tensor& x, const Tensor& statistics,
                                 const Tensor& weight) {
  device_.compute().run(norm_backward({norm_kind(), dx, dweight, dbias, dy, dresidual, x, statistics, weight}));
}

void Decoder::normalise_heads_backward(const Tensor& dqkv, const Tensor& dweight, Allocation before,
                                       const Tensor& weight) {
  if (weight.empty()) return;
  device_.compute().run(
      head_norm_backward({heads_, float(config_.norm_eps), queries_and_keys(dqkv), dweight, before, weight}));
}

} // namespace triax
