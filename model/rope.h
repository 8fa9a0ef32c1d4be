// The table of angles behind rotary embedding.
#pragma once
#include "model/config.h"
#include <vector>

namespace triax {

/// inv_freq[D/2] of the configuration, in radians per position; the formulas are named at RopeConfig.
std::vector<double> rope_frequencies(const RopeConfig& config, int64_t head_width);
/// f32[T, D] row-major, of T positions: cosines, then sines, times the attention factor.
std::vector<float> rope_table(const RopeConfig& config, int64_t head_width, const std::vector<int32_t>& positions);

} // namespace triax
