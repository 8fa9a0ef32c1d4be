// What the description and the kernels of the norm agree on.
#pragma once
#include "kernels/norm.h"

namespace triax {

struct NormAttributes {
  NormKind kind;
  float eps;
};

} // namespace triax
