// What the description and the kernels of the norm agree on.
#pragma once
#include "kernels/norm.h"

namespace triax {

struct NormAttributes {
  NormKind kind;
  float eps;
};
/// Partial sums of the parameter gradients; fixed, so that their order never depends on the machine.
constexpr int64_t kNormPartials = 64;

} // namespace triax
