// Two captured runs held against each other, tensor by tensor in the order of a step.
#pragma once
#include "train/capture_file.h"

namespace triax {

/// How b differs from a: elements whose bits differ.
struct ValueDifference {
  int64_t elements = 0;
  double ulps = 0;                   ///< the largest distance of two elements in units in the last place of `dtype`
  double median_ulps = 0;            ///< of the elements that differ
  int64_t at = -1;                   ///< that element's number; -1 where none differs
  float a = 0, b = 0;                ///< and its values
  double relative = 0;               ///< norm of (b - a) over the norm of a
  bool exceeds(double within) const; ///< `within` of 0: any bit
};
/// Units of bf16 where one of the two tensors has that type. The units between two numbers are how many numbers of that
/// type one passes from one to the other; 0 and -0 are two; a NaN is infinitely far from every number.
ValueDifference compare_values(const std::vector<float>& a, const std::vector<float>& b, Dtype dtype);

struct TensorDifference {
  CapturedTensor tensor; ///< of a
  ValueDifference values;
};
struct CaptureComparison {
  int64_t tensors = 0, steps = 0, equal = 0; ///< equal: to the bit
  std::vector<TensorDifference> differing;   ///< by more than asked for, in the order of the steps
  TensorDifference largest;                  ///< of the others, by the relative norm
};
/// Throws where the two do not hold the same tensors.
CaptureComparison compare_captures(const CapturedRun& a, const CapturedRun& b, double within);

} // namespace triax
