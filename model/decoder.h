// The model: a decoder of pre-normed blocks. Llama, Mistral, Qwen and GPT-2 differ in the configuration alone.
#pragma once
#include "kernels/activation.h"
#include "kernels/device.h"
#include "model/params.h"
#include <functional>

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

class Decoder {
public:
  /// `weights` [elements of the table] f32 or bf16, which is also the type of the activations; `gradients`
  /// f32[elements], empty where nothing is trained. `sequence` is the longest T of any input.
  Decoder(Device& device, const ModelConfig& config, const ParamTable& table, int64_t sequence, const Tensor& weights,
          const Tensor& gradients);
  /// Fills the model's own tables; once, before the first step.
  void initialise();

  /// Told the offset above which all matrix gradients of this micro-batch are final; 0 at the end, vectors included.
  using FinishedDownTo = std::function<void(int64_t)>;
  /// Forward and backward: gradients += scale * d(sum of losses); adds to scalars (step_state.h).
  void train(const Inputs& inputs, const Tensor& scalars, float scale, const FinishedDownTo& finished);
  /// Forward: adds to scalars.
  void evaluate(const Inputs& inputs, const Tensor& scalars);
  /// Logits [n, V] (of the weights' dtype) that follow the rows whose numbers `rows` i32[n] holds.
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
  /// The loss over chunks of rows; with gradients, returns d(loss)/d(hidden).
  Allocation losses(const Inputs& in, const Tensor& hidden, const Tensor& scalars, float scale, bool backward);
  /// `dstream` holds the gradient of what leaves the block and, on return, of what entered it.
  void layer_backward(int64_t l, const Inputs& in, Kept kept, const Tensor& dstream);
  void linear(const Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias);
  void linear_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy, const Tensor& x,
                       const Tensor& weight);
  void normalise(const Tensor& y, const Tensor& sum, const Tensor& statistics, const Tensor& x, const Tensor& residual,
                 const Tensor& weight, const Tensor& bias);
  void normalise_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                          const Tensor& dresidual, const Tensor& x, const Tensor& statistics, const Tensor& weight);
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
  Dtype dtype_;
  int64_t sequence_;
  std::vector<LayerTensors> weights_, gradients_;
  Tensor embedding_, positions_, final_norm_, final_norm_bias_, head_;
  Tensor dembedding_, dpositions_, dfinal_norm_, dfinal_norm_bias_, dhead_;
  std::vector<int64_t> layer_offset_; ///< of each layer's first matrix
  int64_t head_offset_;               ///< of the head, or of the end of the matrices where it is tied
  Tensor angles_;                     ///< f32[T, D]; empty where positions are learned
};

} // namespace triax
