// What the descriptions and the kernels of the optimizer agree on.
#pragma once
#include "kernels/adamw.h"

namespace triax {

struct AdamWAttributes {
  float beta1, beta2, eps, decay;
  int64_t first, decay_to, shared_from;
  int64_t stochastic; ///< 0 or 1
};
struct FinishAttributes {
  float capacity, clip;
};
struct NormTotalAttributes {
  int64_t count;
};

} // namespace triax
