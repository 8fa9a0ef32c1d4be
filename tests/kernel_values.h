// Numbers as the dtypes hold them, and how close a kernel's must come to the oracle's.
#pragma once
#include "kernels/tensor.h"
#include "tests/oracle.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <doctest/doctest.h>

namespace triax::test {

using oracle::Ints;
using oracle::Vec;

inline uint32_t bits_of_float(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}
inline float float_of_bits(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

/// The number as the dtype holds it, rounded to nearest even.
inline double rounded(Dtype dtype, double value) {
  const uint32_t u = bits_of_float(float(value));
  if (dtype == Dtype::f32 || std::isnan(value)) return double(float(value));
  return double(float_of_bits((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u));
}
inline Vec rounded(Dtype dtype, Vec values) {
  for (double& v : values) v = rounded(dtype, v);
  return values;
}
/// Uniform in [-scale, scale], as the dtype holds it.
inline Vec numbers(Dtype dtype, int64_t count, uint64_t seed, double scale = 1) {
  return rounded(dtype, oracle::random(size_t(count), seed, scale));
}

/// Each element within its own rounding (bf16: half a unit in the last place, at most 2^-8) and f32's error on the
/// largest one. `inexact` widens both: how many roundings lie between the operands and the result.
inline void check_close(const char* name, const Vec& got, const Vec& want, Dtype dtype, double inexact = 1) {
  REQUIRE(got.size() == want.size());
  double largest = 0;
  for (double w : want) largest = std::isfinite(w) ? std::max(largest, std::abs(w)) : largest;
  const double relative = inexact * (dtype == Dtype::bf16 ? 0x1p-8 : 1e-5), absolute = inexact * 2e-6 * largest;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])
            ? std::isnan(got[i])
            : got[i] == want[i] || std::abs(got[i] - want[i]) <= relative * std::abs(want[i]) + absolute)
      continue;
    FAIL_CHECK(std::string(name), "[", i, "] of ", got.size(), " ", std::string(name_of(dtype)), " is ", got[i],
               ", expected ", want[i]);
    return;
  }
}

} // namespace triax::test
