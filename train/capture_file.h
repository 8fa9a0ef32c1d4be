// What a rank has of the tensors of its steps, in a file: written by a run that captures, put together by `triax diff`.
#pragma once
#include "data/file.h"
#include "train/weights.h"
#include <map>

namespace triax {

class Trainer;

/// Of a step, in the order in which it is walked.
enum class Phase : int32_t { forward, backward, gradients, weights };
const char* name_of(Phase phase);

/// A tensor of a step, whole: activations of the global batch [rows, columns], or a parameter as its file has it.
struct CapturedTensor {
  int64_t step = 0;
  Phase phase = Phase::forward;
  int64_t order = 0;  ///< inside the phase, from 0, the same in every layout
  int64_t layer = -1; ///< -1: outside the layers
  Dtype dtype = Dtype::f32;
  int64_t rows = 0, columns = 1;
  std::string name;
  int64_t size() const { return rows * columns; }
  std::string describe() const; ///< "step 1, backward, layer 3: gradient of the final norm [64, 48]"
};

/// FOLDER/rank_NNNNN.bin, there once it is closed: records of what this rank has of the tensors; elements that several
/// ranks have are written by one of them.
class CaptureFile {
public:
  CaptureFile(const std::string& folder, int rank);
  /// The trainer's last step, which captured: activations and their gradients, reduced gradients of the parameters
  /// (of the sum of losses over the batch's capacity, not clipped), and the weights that the optimizer has updated.
  void write(const Trainer& trainer);
  void close() { file_.publish(); }
  /// `values` f32, those of `runs` one behind the other.
  void write(const CapturedTensor& tensor, const std::vector<ElementRun>& runs, const std::vector<float>& values);

private:
  void write_activations(const Trainer& trainer, CapturedTensor tensor);
  void write_scalar(CapturedTensor tensor, const char* name, int64_t order, float value);
  void write_parameters(const Trainer& trainer, CapturedTensor tensor, const Tensor& owned);
  OutputFile file_;
};

/// The files of all ranks of one run.
class CapturedRun {
public:
  explicit CapturedRun(const std::string& folder); ///< throws where a file is damaged or there is none
  /// By step, phase and order.
  const std::vector<CapturedTensor>& tensors() const { return tensors_; }
  /// All elements of tensors()[i]; throws where one is missing or was written twice.
  std::vector<float> values(size_t i) const;

private:
  struct Record {
    const char *runs, *values; ///< in the mapped file
    int64_t run_count;
  };
  struct Whole {
    CapturedTensor tensor;
    std::vector<Record> records;
  };
  void index(const MappedFile& file, std::map<std::array<int64_t, 3>, Whole>& by_place);
  std::vector<MappedFile> files_;
  std::vector<CapturedTensor> tensors_;
  std::vector<std::vector<Record>> records_; ///< of each tensor
};

} // namespace triax
