// What a run holds on its device, and every kind of step it issues. A ghost device records the same calls: that is the
// plan.
#pragma once
#include "kernels/step_state.h"
#include "model/decoder.h"
#include "model/shards.h"
#include "train/capture.h"
#include "train/config.h"
#include "train/pipeline.h"
#include "train/weights.h"
#include <map>

namespace triax {

class Trainer {
public:
  /// `dtype` of weights and activations. Allocates everything persistent, in an order that is the plan's. With
  /// `capture` each step of training keeps what is to be compared with another run's.
  Trainer(Device& device, Transport& transport, const Mesh& mesh, const RunConfig& config, Dtype dtype,
          bool capture = false);

  // The kinds of step. Each reads what the host has put in its inputs before.
  void initialise(); ///< random weights from the seed; the one kind of step that differs from rank to rank
  void train();      ///< one optimizer step over all micro-batches
  void evaluate();   ///< the loss of the first micro-batch's inputs, summed into scalars
  /// Issues all of them once, on a ghost.
  void record_all();

  // Host side of a step; `micro_batch` counts from 0.
  struct HostInputs {
    int32_t *tokens, *labels, *order; ///< each i32[B * T / cp]
    int32_t* document_start;          ///< so too, or i32[B * T] where `sees_whole_sequences`
  };
  HostInputs inputs(int64_t micro_batch) const;
  StepState& state() const;
  /// f32[kStepScalars] of the last step; waits for it.
  const float* scalars() const;

  int64_t accumulation() const { return accumulation_; } ///< micro-batches of a step on this rank
  /// The first sequence of this rank's share of a step, and how many they are.
  int64_t first_of_share() const { return groups_.mesh().index(kSampleAxes) * share(); }
  int64_t share() const { return accumulation_ * micro_batch(config_); }
  /// Of a sequence, those that this rank has.
  const std::vector<int32_t>& positions() const { return positions_; }
  bool sees_whole_sequences() const { return config_.context.exchange == ContextExchange::all_to_all; }
  const ParamTable& table() const { return table_; }
  Device& device() const { return device_; }
  Dtype dtype() const { return shards_.dtype(); }

  // What this rank owns of the flat buffers over the table, as `layout` says; `master` is empty where weights are f32.
  Layout layout() const;
  bool is_first_owner() const; ///< of the ranks that own the same
  const Tensor& weights() const { return shards_.own_weights(); }
  const Tensor& master() const { return master_; }
  const Tensor& moment1() const { return moment1_; }
  const Tensor& moment2() const { return moment2_; }
  const Shards& shards() const { return shards_; }
  const Mesh& mesh() const { return groups_.mesh(); }
  const RunConfig& config() const { return config_; }
  const Capture* capture() const { return capture_.get(); } ///< of the last step; null without

private:
  /// What is at work of one micro-batch in one chunk of layers.
  struct Work {
    Decoder::Pass pass;
    Event there; ///< of what was received and not yet waited for
  };
  using Works = std::map<std::pair<int, int>, Work>; ///< by micro-batch and chunk
  void compute(const PipelineStep& step, Work& work);
  void send(const PipelineTransfer& transfer, Works& works);
  void receive(const PipelineTransfer& transfer, Work& work);
  void await(Work& work);
  void sum_tied();
  Tensor floats(const char* name, Purpose purpose, int64_t n) const;
  Inputs device_inputs(int64_t micro_batch) const;
  Tensor lane_scalars(int64_t buffer) const;
  void sum_gradients();
  void sum_over_stages(const Tensor& t);
  void measure_norm(const Tensor& scalars);
  void update(const Tensor& scalars);
  void evaluate_stages(const Tensor& sums);
  void fill_piece(const Tensor& target, const Parameter& p, const Piece& piece);

  Device& device_;
  const RunConfig config_;
  Groups groups_;
  ParamTable table_;
  int64_t accumulation_, rows_, starts_; ///< rows_ of a micro-batch on this rank, and its document starts
  Shards shards_;
  int64_t owned_; ///< elements of the flat buffers of what this rank owns
  Tensor master_, moment1_, moment2_;
  Tensor norm_blocks_, all_norm_blocks_;           ///< f32[blocks of what is owned], and of all pieces
  Tensor norm_totals_;                             ///< f32[units of the whole model]
  Tensor host_state_, host_inputs_, host_scalars_; ///< pinned
  Tensor state_, inputs_, scalars_;                ///< scalars_ f32[lane buffers, kStepScalars]
  ContextParallel context_;
  std::vector<int32_t> positions_;
  Decoder decoder_;
  std::vector<PipelineAction> actions_; ///< of a step of training
  std::unique_ptr<Capture> capture_;
};

/// What the stages of the mesh's pipeline do in a step of training.
PipelineSchedule schedule_of(const RunConfig& config, const Mesh& mesh);

/// bf16 where asked for, or on `automatic` where the target multiplies it in hardware; f32 otherwise.
Dtype choose_dtype(DTypeChoice choice, const Target& target);

/// All kinds of step of this run on `target`, as the ranks of the mesh's pipeline stage issue them: recorded, checked,
/// packed.
Plan make_plan(const Target& target, int threads, const Mesh& mesh, const RunConfig& config, bool capture = false);

/// The plans of all stages. Throws what is wrong with the collectives of ranks that issue them.
std::vector<Plan> make_plans(const Target& target, int threads, const Mesh& mesh, const RunConfig& config,
                             bool capture = false);

} // namespace triax
