// Plain operations on whole tensors.
#pragma once
#include "kernels/op.h"

namespace triax {

Op fill(const Tensor& y, float value);                     ///< f32, bf16 or i32
Op add(const Tensor& y, const Tensor& a, const Tensor& b); ///< y = a + b, one float dtype; y may be a or b
Op cast(const Tensor& y, const Tensor& x);                 ///< between f32 and bf16, to nearest even
Op copy(const Tensor& y, const Tensor& x);                 ///< the same bytes, between any spaces; both dense
Op column_sum(const Tensor& out, const Tensor& x);         ///< out f32[C] += sum over rows of x[N, C]; a fixed order
/// y = std * normal, element i from Philox keyed by (seed, stream, first + i): the same values wherever the element
/// lies.
Op normal_fill(const Tensor& y, float std, uint64_t seed, uint32_t stream, int64_t first);

} // namespace triax
