// What a training run or a benchmark leaves behind, so that another can be held against it: binary and sources,
// configuration, data, machine, libraries, losses, result.
#pragma once
#include "comm/mesh.h"
#include "kernels/op.h"
#include "train/config.h"
#include <nlohmann/json.hpp>

namespace triax {

/// The losses of a run's steps: a hash of all, and those of some steps that are evenly spaced, at most kMost.
class LossRecord {
public:
  static constexpr size_t kMost = 4096;
  /// Steps come one after another.
  void add(int64_t step, double loss);
  /// {"first_step", "last_step", "hash", "last", "every", "losses": those of the steps that `every` divides}; null
  /// without a step. The hash is XXH3 over each step's number and the bits of its loss, in turn.
  nlohmann::ordered_json to_json() const;

private:
  int64_t first_ = 0, last_ = 0, every_ = 1;
  uint64_t hash_ = 0;
  double last_loss_ = 0;
  std::vector<double> losses_;
};

/// Made where the run starts, told each step's loss, written at the end; by rank 0 alone. Nothing in it is collective.
class Receipt {
public:
  /// Of a training run. `ranks_on_host`: of this host. Reads the data folder's list of shards.
  Receipt(const RunConfig& config, const Mesh& mesh, int ranks_on_host, const Target& target, int threads, Dtype dtype);
  /// Of a benchmark: `what` is "bench kernels", ...; `asked` all that was asked for.
  Receipt(const std::string& what, nlohmann::ordered_json asked, int ranks, int ranks_on_host, const Target& target,
          int threads);
  void step(int64_t step, double loss) { losses_.add(step, loss); }
  /// With `result` as it is: rows, or an object, with "tokens_per_s" or "seconds". Whole or absent.
  void write(const std::string& path, const nlohmann::ordered_json& result) const;

private:
  nlohmann::ordered_json head_;
  LossRecord losses_;
};

/// RUN/receipt.json; and what stands beside OUT/kernels.json: OUT/kernels.receipt.
inline constexpr const char* kReceiptName = "receipt.json";
inline constexpr const char* kReceiptEnding = ".receipt";

} // namespace triax
