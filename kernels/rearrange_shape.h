// What the description and the launch of `rearrange` agree on.
#pragma once
#include "kernels/rearrange.h"

namespace triax {

struct RearrangeAttributes {
  int64_t accumulate; ///< 0 or 1
};

} // namespace triax
