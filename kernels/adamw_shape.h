// What the descriptions and the kernels of the optimizer agree on.
#pragma once
#include "kernels/adamw.h"

namespace triax {

struct AdamWAttributes {
  float beta1, beta2, eps, decay;
  int64_t first;
  int64_t stochastic; ///< 0 or 1
};
struct FinishAttributes {
  float capacity, clip;
};
/// Elements whose squares are summed together; fixed, so that the order of the sum never depends on the machine.
constexpr int64_t kNormBlock = 65536;

} // namespace triax
