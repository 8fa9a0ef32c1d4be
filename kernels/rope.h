// Rotary position embedding (Su et al. 2021), half-split pairs as in Llama: element j of a head turns with element j +
// D/2.
#pragma once
#include "kernels/op.h"

namespace triax {

/// In place on x[N, heads * D] (rows may be strided: the query and key columns of a fused projection), position n mod
/// T. `table` f32[T, D]: cosines in columns [0, D/2), sines in [D/2, D), both times the scaling's attention factor.
/// `inverse` turns back, which is the gradient.
Op rope(const Tensor& x, const Tensor& table, int64_t head_width, bool inverse);

} // namespace triax
