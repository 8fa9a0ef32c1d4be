// The model: a decoder of pre-normed blocks. Llama, Mistral, Qwen and GPT-2 differ in the configuration alone.
#pragma once
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/device.h"
#include "model/parameters.h"
#include "model/tensor_parallel.h"
#include <functional>
#include <utility>

namespace triax {

/// One micro-batch on the device; all i32[N], N = batch * sequence.
struct Inputs {
  int64_t batch = 0, sequence = 0;
  Tensor tokens, labels, document_start;
  Tensor order;          ///< rows sorted by token, for the embedding's gradient
  bool documents = true; ///< false: document_start is 0 everywhere
};

/// The tensors of one layer, of the weights or of their gradients; absent ones are empty.
struct LayerTensors {
  Tensor norm1, norm1_bias, qkv, qkv_bias, qk_norm, out, out_bias;
  Tensor norm2, norm2_bias, up, up_bias, down, down_bias;
};

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
          const TensorParallel& tensor);
  /// Fills the model's own tables; once, before the first step.
  void initialise();

  /// Forward and backward: gradients += scale * d(sum of losses); adds to scalars (step_state.h).
  void train(const Inputs& inputs, const Tensor& scalars, float scale);
  /// From now on `train` shows these tensors, in the order in which it computes them. Empty: it shows none.
  void observe(Observer observer) { observer_ = std::move(observer); }
  /// Of all that is shown of `rows` N = batch * sequence, each tensor rounded up to kAlignment.
  int64_t observed_bytes(int64_t rows) const;
  /// Forward: adds to scalars.
  void evaluate(const Inputs& inputs, const Tensor& scalars);
  /// Logits [n, V] (of the weights' dtype) that follow the rows whose numbers `rows` i32[n] holds. In a group of one.
  void predict(const Inputs& inputs, const Tensor& rows, const Tensor& logits);

private:
  /// What a layer keeps for its backward pass. Stream 1 enters the attention's norm, stream 2 the MLP's; `heads` are
  /// queries and keys before their own norm, where the model has that.
  struct Kept {
    Allocation stream1, statistics1, norm1, heads, qkv, attention, lse;
    Allocation stream2, statistics2, norm2, up, activated;
  };
  struct Final {
    Allocation stream, statistics, hidden;
  };
  Final forward(const Inputs& in, std::vector<Kept>& kept, bool keep);
  /// One block: the stream and the branch that joins it in the block's first norm (empty in the first layer, whose
  /// stream1 is the embedding); returns the branch that joins stream2 next.
  Allocation layer_forward(int64_t l, const Inputs& in, const Tensor& stream, Allocation branch, Kept& kept);
  void embed(const Inputs& in, const Tensor& stream);
  void embed_backward(const Inputs& in, const Tensor& dstream);
  /// The loss over chunks of rows; with gradients, returns d(loss)/d(hidden).
  Allocation losses(const Inputs& in, const Tensor& hidden, const Tensor& scalars, float scale, bool backward);
  void loss_of_chunk(const Tensor& losses, const Tensor& logits, const Tensor& labels, float scale, bool backward);
  /// `dstream` holds the gradient of what leaves the block and, on return, of what entered it.
  void layer_backward(int64_t l, const Inputs& in, Kept kept, const Tensor& dstream);
  void normalise(const Tensor& y, const Tensor& sum, const Tensor& statistics, const Tensor& x, const Tensor& residual,
                 const Tensor& weight, const Tensor& bias);
  void normalise_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                          const Tensor& dresidual, const Tensor& x, const Tensor& statistics, const Tensor& weight);
  void show(const char* name, int64_t layer, bool backward, Parted parted, const Tensor& tensor) const {
    if (observer_) observer_({name, layer, backward, parted, tensor});
  }
  void show_layer(int64_t l, const Kept& kept) const;  ///< what it has kept of its forward pass
  LayerTensors layer_weights(int64_t l, int64_t next); ///< there until layer_done
  LayerTensors layer_gradients(int64_t l);             ///< until layer_finished
  void layer_done(int64_t l);
  void layer_finished(int64_t l);
  int bias_unit(int64_t l) const; ///< of biases that stand alone; -1: with the other vectors
  Tensor outside(const Tensor& unit, Role role) const { return view_of(unit, table_, table_.find(role)); }
  int layer_unit(int64_t l) const { return table_.find(Role::qkv, l)->unit; }
  Role head_role() const { return config_.tied ? Role::embedding : Role::head; }
  int head_unit() const { return table_.find(head_role())->unit; }
  int embedding_unit() const { return table_.find(Role::embedding)->unit; }
  int vector_unit() const { return table_.find(Role::final_norm)->unit; }
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
  const int64_t heads_, kv_heads_, mlp_; ///< of this rank
  const Dtype dtype_;
  const int64_t sequence_;
  Tensor vectors_, dvectors_; ///< of the pass under way
  Tensor angles_;             ///< f32[T, D]; empty where positions are learned
  Observer observer_;
};

} // namespace triax
