// What the description and the launches of the matrix product agree on.
#pragma once
#include "kernels/matmul.h"

namespace triax {

/// Operands: 0 c (written, or updated where accumulate), 1 a, 2 b, 3 bias (may be absent).
struct MatmulAttributes {
  int32_t transpose_a, transpose_b, accumulate;
};

/// c[m, n] = op(a)[m, k] op(b)[k, n].
struct MatmulExtent {
  int64_t m, n, k;
};
MatmulExtent matmul_extent(const Op& op);

/// Bytes of workspace that cuBLASLt may use: what NVIDIA recommends from Hopper (sm_90) on, and before.
constexpr int64_t kMatmulWorkspace = int64_t(32) << 20, kMatmulWorkspaceBeforeSm90 = int64_t(4) << 20;
int64_t matmul_workspace(const Target& target);

} // namespace triax
