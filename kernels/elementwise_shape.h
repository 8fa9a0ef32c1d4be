// What the descriptions and the kernels of the plain operations agree on.
#pragma once
#include "kernels/elementwise.h"

namespace triax {

struct FillAttributes {
  float value;
};
struct NormalAttributes {
  uint64_t seed;
  int64_t first, pitch;
  float std;
  uint32_t stream;
};

struct SumAttributes {
  int64_t accumulate; ///< 0 or 1
};
constexpr int kSumGroup = 8;   ///< pieces whose tree is in registers
constexpr int kSumLevels = 21; ///< of the tree over groups: fewer than 2^24 pieces

} // namespace triax
