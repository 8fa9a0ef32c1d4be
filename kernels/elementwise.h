// Plain operations on whole tensors.
#pragma once
#include "kernels/op.h"

namespace triax {

Op fill(const Tensor& y, float value);                     ///< f32, bf16 or i32
Op add(const Tensor& y, const Tensor& a, const Tensor& b); ///< y = a + b, one float dtype; y may be a or b
Op cast(const Tensor& y, const Tensor& x);                 ///< between f32 and bf16, to nearest even
Op copy(const Tensor& y, const Tensor& x);                 ///< the same bytes, between any spaces; both dense
Op column_sum(const Tensor& out, const Tensor& x);         ///< out f32[C] += sum over rows of x[N, C]; a fixed order
/// out[n] = the sum over r of pieces[r, i], in f32, over a fixed binary tree of the r: ((0 + 1) + (2 + 3)) + ...; with
/// `accumulate`, f32 alone, it is added to `out`. One float dtype; `out` may be one of the pieces.
Op sum_pieces(const Tensor& out, const Tensor& pieces, bool accumulate);
/// y[N, C] += bias[C], one float dtype.
Op add_bias(const Tensor& y, const Tensor& bias);
/// Element i of y is std * normal number first + i, from Philox keyed by (seed, stream): the same values wherever the
/// element lies. With a `pitch` y is a part of a matrix of so many columns: y[r, c] has number first + r * pitch + c.
Op normal_fill(const Tensor& y, float std, uint64_t seed, uint32_t stream, int64_t first, int64_t pitch = 0);

} // namespace triax
