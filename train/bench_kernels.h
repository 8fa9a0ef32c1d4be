// How near the kernels come to what the machine can do.
#pragma once
#include "train/bench_case.h"
#include <optional>

namespace triax {

/// What a kernel is held to: row-wise ones to a copy of as many bytes (on a CPU also to its exponentials), the others
/// to the machine's matrix rate.
enum class KernelKind { rows, attention, matmul };
const char* name_of(KernelKind kind);

struct KernelRow {
  KernelKind kind = KernelKind::rows;
  std::string name;           ///< "rms_norm forward"
  std::string implementation; ///< "triax", or what else is registered for the operation
  std::string shape;
  Dtype dtype = Dtype::f32;
  double flops = 0, bytes = 0; ///< that the mathematics needs, that must be moved
  double seconds = 0;          ///< median
  // Of row-wise kernels.
  double exponentials = 0;  ///< that the kernel computes, each pass counted; 0 for none, and on a GPU
  double copy_seconds = 0;  ///< to copy as many bytes, the best of the same rounds
  double exp_seconds = 0;   ///< to compute as many exponentials with __expf, at the best rate of the whole run
  double floor_seconds = 0; ///< the larger of the two
  // Of the others.
  double matrix_rate = 0; ///< FLOP/s, the best of the whole run
  double percent = 0;     ///< 100 * floor / seconds, 100 * flops / seconds / matrix rate
  double difference = -1; ///< from the CPU, see difference_from_cpu; below 0: not asked for
  double allowed = 0;     ///< what it may be
  std::string error;      ///< why it was not measured
  bool unchecked = false; ///< nor could be: it runs on a GPU alone, and this place is none; once for all shapes
  bool failed() const { return !error.empty() || difference > allowed; }
};

struct KernelOptions {
  std::string name; ///< rows alone whose name and shape contain it; see matches
  std::optional<KernelKind> kind;
  std::optional<Dtype> dtype;
  BenchPlace place;
  BenchSize size = BenchSize::usual;
  bool check = false; ///< also hold each kernel to the CPU
};

/// Does `text` contain `part`? Letter case, spaces and underscores do not count.
bool matches(const std::string& text, const std::string& part);

/// A kernel to be measured.
struct KernelCase {
  using Make = std::function<Op(BenchCase&)>;
  KernelKind kind;
  std::string name, shape;
  Dtype dtype;
  double exponentials;
  Make make;
  Make small = {}; ///< what the CPU can check in time; empty: as measured
};
std::vector<KernelCase> row_wise_cases(const BenchPlace& place, Dtype dtype, BenchSize size);
/// Causal, of one document: T from 512 to 4096, on a GPU to 8192, with 64 and 128 wide heads.
std::vector<KernelCase> attention_cases(const BenchPlace& place, Dtype dtype, BenchSize size);
/// What a model multiplies: forward (NT), the gradients of activations (NN) and of weights (TN).
std::vector<KernelCase> product_cases(const BenchPlace& place, Dtype dtype, BenchSize size);

/// Times the kernels that were asked for, each in every implementation that this binary has for the place; a kernel and
/// what it is held to take turns. Calls `progress` after each row with all so far, complete. Means something on an idle
/// machine only: a team of as many threads as cores waits for whichever of them is disturbed. Throws where no row has
/// such a name; what goes wrong in a row is said there.
std::vector<KernelRow> bench_kernels(const KernelOptions& options,
                                     const std::function<void(const std::vector<KernelRow>&)>& progress);

} // namespace triax
