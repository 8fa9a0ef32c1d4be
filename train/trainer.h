// What a run holds on its device, and every kind of step it issues. A ghost device records the same calls: that is the
// plan.
#pragma once
#include "comm/reducer.h"
#include "kernels/step_state.h"
#include "model/decoder.h"
#include "train/config.h"

namespace triax {

class Trainer {
public:
  /// `dtype` of weights and activations. Allocates everything persistent, in an order that is the plan's.
  Trainer(Device& device, Transport& transport, const Mesh& mesh, const RunConfig& config, Dtype dtype);

  // The kinds of step. Each reads what the host has put in its inputs before.
  void initialise(); ///< random weights from the seed
  void train();      ///< one optimizer step over all micro-batches
  void evaluate();   ///< the loss of the first micro-batch's inputs, summed into scalars
  /// Issues all of them once, on a ghost.
  void record_all();

  // Host side of a step; `micro_batch` counts from 0.
  struct HostInputs {
    int32_t *tokens, *labels, *document_start, *order; ///< each i32[B * T]
  };
  HostInputs inputs(int64_t micro_batch) const;
  StepState& state() const;
  /// f32[kStepScalars] of the last step; waits for it.
  const float* scalars() const;

  int64_t accumulation() const { return accumulation_; } ///< micro-batches of a step on this rank
  int64_t rank_share() const { return accumulation_ * config_.train.micro_batch; } ///< sequences of a step on this rank
  const ParamTable& table() const { return table_; }
  Device& device() const { return device_; }
  Dtype dtype() const { return weights_.dtype; }

  // Flat buffers over the table; `master` is empty where the weights are f32.
  const Tensor& weights() const { return weights_; }
  const Tensor& master() const { return master_; }
  const Tensor& gradients() const { return gradients_; }
  const Tensor& moment1() const { return moment1_; }
  const Tensor& moment2() const { return moment2_; }

private:
  Inputs device_inputs(int64_t micro_batch) const;
  void update(int64_t first, int64_t end, double decay);

  Device& device_;
  const RunConfig config_;
  ParamTable table_;
  Collectives data_axis_;
  int64_t accumulation_, rows_; ///< rows_ = B * T of a micro-batch
  Tensor weights_, master_, gradients_, moment1_, moment2_;
  Tensor host_state_, host_inputs_, host_scalars_; ///< pinned
  Tensor state_, inputs_, scalars_;
  Decoder decoder_;
  BucketReducer reducer_;
};

/// bf16 where asked for, or on `automatic` where the target multiplies it in hardware; f32 otherwise.
Dtype choose_dtype(DTypeChoice choice, const Target& target);

/// All kinds of step of this run on `target`, as seen by the transport's rank: recorded, checked, packed.
Plan make_plan(const Target& target, int threads, Transport& transport, const Mesh& mesh, const RunConfig& config);

} // namespace triax
