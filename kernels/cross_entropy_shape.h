// What the description and the kernels of the loss agree on.
#pragma once
#include "kernels/cross_entropy.h"

namespace triax {

struct CrossEntropyAttributes {
  float scale;
  int32_t backward; ///< 0 or 1
};

struct PartsAttributes {
  int64_t classes; ///< of all ranks
  float scale;
  int32_t backward; ///< 0 or 1
};

} // namespace triax
