#include "model/rope.h"
#include <algorithm>
#include <cmath>
#include <numbers>

namespace triax {
namespace {

/// Llama 3.1's blend: wavelengths short against the original context stay, long ones are divided, those between are
/// mixed.
double llama3_frequency(const RopeConfig& c, double frequency) {
  const double original = double(c.original_context), wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / c.high_freq_factor) return frequency;
  if (wavelength > original / c.low_freq_factor) return frequency / c.factor;
  const double smooth = (original / wavelength - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
  return (1 - smooth) * frequency / c.factor + smooth * frequency;
}

/// YaRN (arXiv 2309.00071, section 3.2): the pair at which a frequency turns `rotations` times in the original context.
double yarn_pair(const RopeConfig& c, int64_t width, double rotations) {
  return double(width) * std::log(double(c.original_context) / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(c.theta));
}

void apply_yarn(const RopeConfig& c, int64_t width, std::vector<double>& frequencies) {
  double low = yarn_pair(c, width, c.beta_fast), high = yarn_pair(c, width, c.beta_slow);
  if (c.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, double(width - 1));
  if (low == high) high += 0.001; // no division by zero, as in the reference
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double extrapolate = 1 - std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= (1 - extrapolate) / c.factor + extrapolate;
  }
}

} // namespace

std::vector<double> rope_frequencies(const RopeConfig& c, int64_t width) {
  std::vector<double> frequencies(static_cast<size_t>(width / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = std::pow(c.theta, -2.0 * double(i) / double(width));
  for (double& f : frequencies) {
    if (c.kind == RopeKind::linear) f /= c.factor;
    if (c.kind == RopeKind::llama3) f = llama3_frequency(c, f);
  }
  if (c.kind == RopeKind::yarn) apply_yarn(c, width, frequencies);
  return frequencies;
}

std::vector<float> rope_table(const RopeConfig& c, int64_t width, const std::vector<int32_t>& positions) {
  const auto frequencies = rope_frequencies(c, width);
  const double scale = c.kind == RopeKind::yarn ? c.attention_factor : 1.0;
  std::vector<float> table(positions.size() * size_t(width));
  for (size_t t = 0; t < positions.size(); ++t)
    for (int64_t i = 0; i < width / 2; ++i) {
      const double angle = double(positions[t]) * frequencies[size_t(i)];
      table[t * size_t(width) + size_t(i)] = float(scale * std::cos(angle));
      table[t * size_t(width) + size_t(width / 2 + i)] = float(scale * std::sin(angle));
    }
  return table;
}

} // namespace triax
