// Two exponentials that do less than __expf on the host, for arguments of which more is known. Both vectorise.
#pragma once
#include "kernels/simt.h"

namespace triax {
inline namespace SIMT_NS {

/// 2^f on [-1/2, 1/2] by the polynomial of least relative error with 1 as its constant: 2e-7, and where the result is
/// stored as bf16 3e-6: enough where its slope crosses zero.
template <class T> SIMT_FN float exp2_fraction(float f) {
  if constexpr (sizeof(T) == 2) {
    float p = 9.5828529447e-3f;
    p = p * f + 5.5906426162e-2f;
    p = p * f + 2.4024099112e-1f;
    p = p * f + 6.9312417507e-1f;
    return p * f + 1.0f;
  }
  float p = 1.3276471870e-3f;
  p = p * f + 9.6755413273e-3f;
  p = p * f + 5.5507132739e-2f;
  p = p * f + 2.4022119724e-1f;
  p = p * f + 6.9314696706e-1f;
  return p * f + 1.0f;
}

/// 2^t, 0 below -127 and infinity from 128; of NaN it is any number. The bounds are taken on the bits, since g++ spoils
/// comparisons of floats: as unsigned numbers the negative floats come last, by magnitude.
template <class T = float> SIMT_DEV float exp2_bounded(float t) {
  if constexpr (!kIsHost) return exp2f(t);
  const uint32_t low = 0xc2fe0000u, u = bits_of(t) < low ? bits_of(t) : low;  // -127
  const int32_t high = 0x43000000, s = int32_t(u) < high ? int32_t(u) : high; // 128
  t = float_of(uint32_t(s));
  const float n = rintf(t);
  return float_of(bits_of(exp2_fraction<T>(t - n)) + (uint32_t(int32_t(n)) << 23));
}

/// exp(x) for x <= 0 and not far above; 0 below -88, NaN of NaN. The relative error is 2e-7 + 6e-8 |x|.
SIMT_DEV float exp_below(float x) {
  if constexpr (!kIsHost) return __expf(x);
  x = x < -88.0f ? -88.0f : x;
  const float t = x * 1.44269504f, n = rintf(t);
  return exp2_fraction<float>(t - n) * float_of(uint32_t(int32_t(n) + 127) << 23); // times 0 at -127
}

} // namespace SIMT_NS
} // namespace triax
