// A training run on this rank: what the loop in loop.cpp is written in.
#pragma once
#include "data/dataset.h"
#include "data/prefetch.h"
#include "data/tokenizer.h"
#include "train/capture_file.h"
#include "train/checkpoint.h"
#include "train/folder_lock.h"
#include "train/log.h"
#include "train/receipt.h"
#include <array>
#include <optional>

namespace triax {

class Run {
public:
  /// What `triax diff` compares: everything goes to `folder`, nothing is evaluated or saved, `steps` steps are run.
  struct CaptureOptions {
    std::string folder; ///< empty: a run that captures nothing
    int64_t steps = 0;
  };
  /// Opens data and device, plans, and takes the plan's memory. Throws before anything is written.
  Run(const RunConfig& config, Transport& transport, const Target& target, const CaptureOptions& capture);
  ~Run();

  void start(); ///< weights: random, from Hugging Face files, or a checkpoint's with everything else
  bool finished() const {
    return state_.step >= config_.train.steps || (captures() && steps_here_ >= capture_options_.steps);
  }
  void load_batch();     ///< the next global batch's share of this rank, into the step's inputs
  void update_weights(); ///< one planned step
  void log_step();
  bool evaluation_due() const;
  void evaluate(); ///< held-out loss and bits per byte
  bool checkpoint_due() const;
  void save();
  void finish(); ///< summary.json

private:
  bool captures() const { return !capture_options_.folder.empty(); }
  bool due(int64_t every) const { return every > 0 && state_.step % every == 0; }
  bool is_first() const { return transport_.rank() == 0; }
  const Plan& plan() const { return plans_[size_t(mesh_.coordinate(Axis::pp))]; }
  void agree_on_plans() const;
  void announce() const;
  std::string checkpoint_to_resume() const; ///< empty: none
  void load_weights_and_state();
  void measure_machine(); ///< the matrix rate of all ranks; the best so far counts
  std::string algorithms_path() const;
  void ask_for_batches();
  Batch rows_of(Batch batch) const; ///< what this rank has of it
  void fill(int64_t micro_batch, const Batch& batch);
  double mean_loss() const;
  double mean_step_seconds() const;
  nlohmann::ordered_json speed(double step_seconds) const;
  std::string progress_line() const;

  const RunConfig config_;
  const CaptureOptions capture_options_;
  Transport& transport_;
  const Mesh mesh_;
  const Target target_;
  const int threads_;
  Dataset data_;
  std::optional<Dataset> held_out_;
  std::string held_out_problem_; ///< why there is no evaluation
  std::optional<Tokenizer> tokenizer_;
  const std::vector<Plan> plans_;     ///< by pipeline stage
  const std::string algorithms_note_; ///< why kept algorithms are not used; empty: they are, or there are none
  std::unique_ptr<Device> device_;
  Trainer trainer_;
  std::unique_ptr<Prefetcher> prefetcher_;
  std::unique_ptr<FolderLock> lock_; ///< of rank 0
  std::unique_ptr<RunLog> log_;
  std::optional<Receipt> receipt_; ///< of rank 0
  std::unique_ptr<CaptureFile> capture_;
  RunState state_;
  std::array<float, kStepScalars> scalars_{};
  std::chrono::steady_clock::time_point began_, step_began_;
  double matrix_rate_ = 0;      ///< FLOP/s of all ranks
  double training_seconds_ = 0; ///< of this process's steps after its first
  int64_t steps_here_ = 0;
  double step_seconds_ = 0;
  double held_out_loss_ = 0, bits_per_byte_ = 0;
};

/// The training loop.
void train(Run& run);

} // namespace triax
