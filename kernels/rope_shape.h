// What the description and the kernel of the rotary embedding agree on.
#pragma once
#include "kernels/rope.h"

namespace triax {

struct RopeAttributes {
  int64_t head_width;
  int64_t inverse; ///< 0 or 1
};

} // namespace triax
