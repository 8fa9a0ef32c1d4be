// The functions between a block's two MLP products.
#pragma once
#include "kernels/op.h"

namespace triax {

/// y[N, F] = silu(x[:, :F]) * x[:, F:], x[N, 2F] holds gate and up side by side (Shazeer 2020).
Op swiglu_forward(const Tensor& y, const Tensor& x);
Op swiglu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x); ///< dx[N, 2F]

enum class Gelu : int32_t { tanh, erf };
/// y = gelu(x), elementwise (Hendrycks and Gimpel 2016); tanh is GPT-2's form.
Op gelu_forward(const Tensor& y, const Tensor& x, Gelu kind);
Op gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu kind); ///< dx may be dy

} // namespace triax
