// What the description and the kernels of the heads' norm agree on.
#pragma once
#include "kernels/head_norm.h"

namespace triax {

struct HeadNormAttributes {
  int64_t queries; ///< H
  float eps;
  int32_t head_width; ///< D
};

} // namespace triax
