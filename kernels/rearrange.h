// Elements moved between strided boxes.
#pragma once
#include "kernels/op.h"

namespace triax {

/// y = x for boxes of one shape, of float dtypes, rounded where that of y is shorter; their last dimensions are
/// contiguous. With `accumulate` y, f32, has x added to it.
Op rearrange(const Tensor& y, const Tensor& x, bool accumulate = false);

} // namespace triax
