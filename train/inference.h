// A model without an optimizer: to evaluate and to generate.
#pragma once
#include "data/dataset.h"
#include "model/decoder.h"
#include <optional>
#include <string>
#include <vector>

namespace triax {

/// A run's newest checkpoint where `path` is a run's folder; else `path` itself.
std::string model_folder(const std::string& path);

class Inference {
public:
  /// Loads the Hugging Face folder; `sequence` tokens at most (0: the model's context, up to 2048), `batch` sequences
  /// at once.
  Inference(const std::string& folder, const Target& target, int threads, int64_t batch, int64_t sequence);
  ~Inference();

  struct Loss {
    double nats = 0, tokens = 0;
  };
  Loss loss(const Batch& batch);
  /// Logits [V] of what follows `ids` (the last `sequence` of them).
  std::vector<float> next(const std::vector<int32_t>& ids);

  const ModelConfig& model() const { return model_; }
  int64_t batch() const { return batch_; }
  int64_t sequence() const { return sequence_; }

private:
  struct Held;
  ModelConfig model_;
  ParamTable table_;
  int64_t batch_, sequence_;
  Dtype dtype_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Held> held_;
};

} // namespace triax
