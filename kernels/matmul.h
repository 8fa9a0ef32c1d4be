// Matrix products: oneDNN on the CPU, cuBLASLt on the GPU.
#pragma once
#include "kernels/op.h"

namespace triax {

/// c[M, N] = op(a) op(b) (+ bias[N]) (+ c where `accumulate`); op transposes where asked. a and b are both f32 or both
/// bf16; c is of their dtype or f32; rows may be strided (columns are contiguous). Sums are kept in f32.
///   y[N, O]  = x[N, I] w[O, I]^T      matmul({.c = y, .a = x, .b = w, .transpose_b = true})
///   dx[N, I] = dy[N, O] w[O, I]       matmul({.c = dx, .a = dy, .b = w})
///   dw[O, I] += dy[N, O]^T x[N, I]    matmul({.c = dw, .a = dy, .b = x, .transpose_a = true, .accumulate = true})
struct Matmul {
  Tensor c{}, a{}, b{}, bias{}; ///< bias [N] of a's dtype; may be absent
  bool transpose_a = false, transpose_b = false, accumulate = false;
};
Op matmul(const Matmul& m);

/// The CPU's matrix rate in FLOP/s: oneDNN's product of two large square matrices of this dtype on `threads` threads,
/// best of several. What a CPU's model flops utilisation is measured against.
double measure_matrix_rate(Dtype dtype, int threads);
/// Does this CPU multiply bf16 in hardware (avx512_bf16 or AMX)? Elsewhere bf16 products are computed from converted
/// f32 operands.
bool cpu_has_bf16();

} // namespace triax
