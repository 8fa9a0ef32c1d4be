// How near the row-wise kernels come to what the machine can do.
#pragma once
#include "kernels/tensor.h"
#include <string>
#include <vector>

namespace triax {

struct KernelRow {
  std::string name, shape;
  Dtype dtype;
  double bytes;         ///< that must be moved
  double exponentials;  ///< that the kernel computes, each pass counted; 0 for none
  double seconds;       ///< median
  double copy_seconds;  ///< to copy as many bytes, the best of the same rounds
  double exp_seconds;   ///< to compute as many exponentials with __expf, at the best rate of the whole run
  double floor_seconds; ///< the larger of the two
  double percent;       ///< 100 * floor / seconds
};

/// Times every row-wise kernel on a team of `threads`, in shapes that come from memory and shapes that stay in the
/// cache. Kernel and floors take turns. Means something on an idle machine only: a team of as many threads as cores
/// waits for whichever of them is disturbed.
std::vector<KernelRow> bench_kernels(int threads);

} // namespace triax
