// What the descriptions and the kernels of the plain operations agree on.
#pragma once
#include "kernels/elementwise.h"

namespace triax {

struct FillAttributes {
  float value;
};
struct NormalAttributes {
  uint64_t seed;
  int64_t first;
  float std;
  uint32_t stream;
};

} // namespace triax
