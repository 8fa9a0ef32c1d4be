// What the row-wise kernels are measured against.
#pragma once
#include "kernels/op.h"

namespace triax {

/// Reads x and writes y, both f32[n]: nothing that moves as many bytes is faster.
Op floor_copy(const Tensor& y, const Tensor& x);
/// y = exp(x), `repeat` times over blocks that stay in the nearest cache: the kernels' own exp at its best.
Op floor_exp(const Tensor& y, const Tensor& x, int64_t repeat);

} // namespace triax
