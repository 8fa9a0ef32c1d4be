// Matrix products on the CPU by oneDNN: the one place that knows it. Works with its API of 2.x and of 3.x.
#pragma once
#include "kernels/matmul_shape.h"

namespace triax {

/// Scratch bytes of the product on a team of omp_get_max_threads(). Makes oneDNN's descriptor, runs nothing.
int64_t matmul_host_scratch(const Op& op);

} // namespace triax
