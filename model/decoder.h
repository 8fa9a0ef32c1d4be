// The model: a decoder of pre-normed blocks. Llama, Mistral, Qwen and GPT-2 differ in the configuration alone.
#pragma once
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/device.h"
#include "kernels/norm.h"
#include "model/context_parallel.h"
#include "model/parameters.h"
#include "model/tensor_parallel.h"
#include <functional>
#include <utility>

namespace triax {

/// One micro-batch on the device; all i32[N], N = batch * sequence, where `sequence` are the positions of this rank.
struct Inputs {
  int64_t batch = 0, sequence = 0;
  Tensor tokens, labels, document_start; ///< document_start as ContextParallel takes it
  Tensor order;                          ///< rows sorted by token, for the embedding's gradient
  bool documents = true;                 ///< false: document_start is 0 everywhere
};

/// The tensors of one layer, of the weights or of their gradients; absent ones are empty.
struct LayerTensors {
  Tensor norm1, norm1_bias, qkv, qkv_bias, qk_norm, out, out_bias;
  Tensor norm2, norm2_bias, up, up_bias, down, down_bias;
};

// What an observer is shown of a layer and behind the layers, forward; backward, the gradients of the same.
constexpr const char *kIntoAttention = "stream into the attention", *kAttention = "attention of the heads",
                     *kIntoMlp = "stream into the MLP", *kActivated = "activated MLP",
                     *kFinalStream = "stream out of the last layer", *kFinalNorm = "final norm";

/// A tensor of a training pass that another layout has too, in whatever parts: what two runs can be compared by.
struct Observed {
  const char* name; ///< "stream into the MLP"; of the backward pass it is the gradient of that
  int64_t layer;    ///< -1: outside the layers
  bool backward;
  Parted parted; ///< whole [N]; by rows [N / tp, columns] as TensorParallel has them; by columns [N, columns / tp]
  Tensor tensor; ///< dense, valid for what is issued on the compute stream before the observer returns
};
using Observer = std::function<void(const Observed&)>;

class Decoder {
public:
  /// Weights come from `parameters`, of the dtype that activations have too, and gradients go there, over `table`; the
  /// group over which the table is cut is that of `tensor`. `sequence` is the longest T of any input.
  Decoder(Device& device, const ModelConfig& config, const ParamTable& table, int64_t sequence, Parameters& parameters,
          const TensorParallel& tensor, const ContextParallel& context);
  /// Fills the model's own tables; once, before the first step.
  void initialise();

  /// Forward and backward of the whole model: gradients += scale * d(sum of losses); adds to scalars (step_state.h).
  void train(const Inputs& inputs, const Tensor& scalars, float scale);

private:
  /// What a layer keeps for its backward pass. Stream 1 enters the attention's norm, stream 2 the MLP's; `heads` are
  /// queries and keys before their own norm, where the model has that.
  struct Kept {
    Allocation stream1, statistics1, norm1, heads, qkv, attention;
    ContextParallel::Kept in_attention;
    Allocation stream2, statistics2, norm2, up, activated;
  };
  struct Final {
    Allocation stream, statistics, hidden;
  };
  /// What the products for a layer's weights need: their inputs, and the gradients of what came out.
  struct Late {
    Allocation norm1, dqkv, attention, dprojected, norm2, dup, activated, ddown;
  };

public:
  /// One micro-batch's way through some layers. The stream that enters comes from the layers before, unless the range
  /// has the embedding; the one that leaves goes to the layers behind, unless it has the head; [N / tp, C]. So do their
  /// gradients, the other way.
  struct Pass {
    Allocation entering, leaving, gradient;

  private:
    friend class Decoder;
    std::vector<Kept> kept;
    std::vector<Late> late; ///< empty where weights' gradients do not come late
    Final final;
  };
  /// A buffer for what another rank sends.
  Allocation received(const Inputs& inputs, const char* name) {
    return activations(name, own_rows(inputs), config_.width);
  }
  /// Takes `entering`, gives `leaving`; keeps what `backward` needs.
  void forward(const LayerRange& range, const Inputs& inputs, Pass& pass) { forward(range, inputs, pass, true); }
  /// Takes the gradient of what left, gives that of what entered; the head begins with the losses. The gradients of the
  /// layers' matrices are taken here or, `late`, by `finish_weights`.
  enum class Weights { now, late };
  void backward(const LayerRange& range, const Inputs& inputs, Pass& pass, const Tensor& scalars, float scale,
                Weights weights = Weights::now);
  void finish_weights(const LayerRange& range, Pass& pass);
  /// As forward, keeping nothing; the head adds to scalars.
  void evaluate(const LayerRange& range, const Inputs& inputs, Pass& pass, const Tensor& scalars);
  LayerRange all() const { return {0, config_.layers, true, true}; }

  /// From now on `train` shows these tensors, in the order in which it computes them. Empty: it shows none.
  void observe(Observer observer) { observer_ = std::move(observer); }
  /// Of all that is shown of `rows` N = batch * sequence, each tensor rounded up to kAlignment.
  int64_t observed_bytes(int64_t rows) const;
  void evaluate(const Inputs& inputs, const Tensor& scalars); ///< the whole model: adds to scalars
  /// Logits [n, V] (of the weights' dtype) that follow the rows whose numbers `rows` i32[n] holds. In a group of one.
  void predict(const Inputs& inputs, const Tensor& rows, const Tensor& logits);

private:
  void forward(const LayerRange& range, const Inputs& in, Pass& pass, bool keep);
  /// One block: the stream and the branch that joins it in the block's first norm (empty in a range's first layer,
  /// whose stream1 is there already); returns the branch that joins stream2 next.
  Allocation layer_forward(int64_t l, int next, const Inputs& in, const Tensor& stream, Allocation branch, Kept& kept);
  Allocation enter(const LayerRange& range, const Inputs& in, Pass& pass); ///< the stream into the first layer
  /// The norm behind the last layer, of stream and branch; of `alone` where there is no layer before it.
  Final finish(const Inputs& in, const Tensor& stream, const Tensor& branch, Allocation alone);
  void embed(const Inputs& in, const Tensor& stream, int next);
  void embed_backward(const Inputs& in, const Tensor& dstream);
  /// The loss over chunks of rows; with gradients, returns d(loss)/d(hidden).
  Allocation losses(const Inputs& in, const Tensor& hidden, const Tensor& scalars, float scale, bool backward);
  void loss_of_chunk(const Tensor& losses, const Tensor& logits, const Tensor& labels, float scale, bool backward);
  /// `dstream` holds the gradient of what leaves the block and, on return, of what entered it.
  void layer_backward(int64_t l, int next, const Inputs& in, Kept kept, Allocation& dstream, Late* late);
  void normalise(const Tensor& y, const Tensor& sum, const Tensor& statistics, const Tensor& x, const Tensor& residual,
                 const Tensor& weight, const Tensor& bias);
  void normalise_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                          const Tensor& dresidual, const Tensor& x, const Tensor& statistics, const Tensor& weight);
  void show(const char* name, int64_t layer, bool backward, Parted parted, const Tensor& tensor) const {
    if (observer_) observer_({name, layer, backward, parted, tensor});
  }
  void show_layer(int64_t l, const Kept& kept) const; ///< what it has kept of its forward pass
  LayerTensors layer_tensors(int64_t l, const Tensor& unit, const Tensor& biases) const;
  LayerTensors layer_weights(int64_t l, int next); ///< there until layer_done
  LayerTensors layer_gradients(int64_t l);         ///< until layer_finished
  void layer_done(int64_t l);
  void layer_finished(int64_t l);
  Tensor outside(const Tensor& unit, Role role) const { return view_of(unit, table_, table_.find(role)); }
  int layer_unit(int64_t l) const { return table_.unit_of(Role::qkv, l); }
  int bias_unit(int64_t l) const; ///< of biases that stand alone; -1: with the layer
  Role head_role() const { return table_.find(Role::head) ? Role::head : Role::embedding; }
  int head_unit() const { return table_.unit_of(head_role()); }
  int embedding_unit() const { return table_.unit_of(Role::embedding); }
  int position_unit() const { return table_.unit_of(Role::positions); } ///< -1 where none are learned
  int norm_unit() const { return table_.unit_of(Role::final_norm); }
  /// Learned positions [0, T) of their unit or its gradient, of all ranks; empty where there are none.
  Tensor first_positions(const Tensor& unit, const Inputs& in) const {
    const Tensor table = outside(unit, Role::positions);
    return table.empty() ? table : table.slice(0, 0, in.sequence * context_.size());
  }
  NormKind norm_kind() const { return config_.norm == Norm::rms ? NormKind::rms : NormKind::layer; }
  int64_t own_rows(const Inputs& in) const { return in.batch * in.sequence / tensor_.size(); }
  AttentionShape attention_shape(const Inputs& in, int64_t layer) const;
  Allocation activations(const char* name, int64_t rows, int64_t columns);
  Allocation statistics(int64_t rows);
  Tensor queries_and_keys(const Tensor& qkv) const;
  /// The norm of each query and key head, where the model has it. Keeps the heads as they were.
  void normalise_heads(const Tensor& qkv, Allocation& before, const Tensor& weight);
  void normalise_heads_backward(const Tensor& dqkv, const Tensor& dweight, Allocation before, const Tensor& weight);
  void turn(const Tensor& qkv, bool inverse); ///< rotary embedding of queries and keys, where the model has it
  bool gated() const { return config_.activation == Activation::swiglu; }
  Gelu gelu() const { return config_.activation == Activation::gelu_erf ? Gelu::erf : Gelu::tanh; }

  Device& device_;
  const ModelConfig config_;
  const ParamTable& table_;
  Parameters& parameters_;
  TensorParallel tensor_;
  ContextParallel context_;
  const int64_t heads_, kv_heads_, mlp_; ///< of this rank
  const Dtype dtype_;
  const int64_t sequence_;
  Tensor angles_;    ///< f32[T, D]; empty where positions are learned
  Tensor positions_; ///< i32[T], which of the learned ones; empty where those are 0, 1, ...
  Observer observer_;
};

} // namespace triax
