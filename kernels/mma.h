// Tensor cores and asynchronous copies: the one home of inline PTX, and the same names in the emulation. For sm_80 and
// newer. A warp does them together; fragments are laid out as in the PTX manual, sections "mma.m16n8k16" and
// "ldmatrix": with g = lane / 4 and t = lane % 4,
//   a[0], a[1], a[2], a[3]: rows g, g + 8, g, g + 8 of A (16 x 16), columns 2t, 2t, 2t + 8, 2t + 8 and the next;
//   b[0], b[1]: rows 2t, 2t + 8 and the next of B (16 x 8), column g;
//   c[0], c[1] and c[2], c[3]: rows g and g + 8 of C (16 x 8), columns 2t and 2t + 1.
#pragma once
#include "kernels/simt.h"

namespace triax {
inline namespace SIMT_NS {

#if defined(__CUDACC__)

SIMT_DEV uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

/// d[i] = the lane's pair of elements of the 8 x 8 matrix i; lane 8 i + r gives the address of its row r, 16 bytes in
/// shared memory aligned to 16. Element (g, 2t) and the next.
SIMT_DEV void ldmatrix_x4(uint32_t (&d)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared_address(shared_row))
               : "memory");
}
/// The same of the transposed matrices: element (2t, g) and the one below.
SIMT_DEV void ldmatrix_x4_trans(uint32_t (&d)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared_address(shared_row))
               : "memory");
}
/// c += a b, in f32.
SIMT_DEV void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// Copies 16 aligned bytes, or zeros where not `in_range` (then nothing is read), without waiting.
SIMT_DEV void cp_async_16(void* shared, const void* global, bool in_range) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(in_range ? 16 : 0)
               : "memory");
}
/// Ends a group of the thread's copies.
SIMT_DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// All but the thread's last N groups are done; other threads see them after a barrier.
template <int N> SIMT_DEV void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
/// Two numbers, each rounded to nearest even; `lo` in the lower half, which is the first in memory.
SIMT_DEV uint32_t pack_bf16(float lo, float hi) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
  return d;
}
/// 2^x to 2 ulp, 0 for what is no normal number.
SIMT_DEV float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#else

SIMT_CALLED inline void ldmatrix_x4(uint32_t (&d)[4], const void* shared_row, SIMT_HERE) {
  emulation::LoadMatrix lane{d, shared_row, __builtin_return_address(0)};
  emulation::warp_together(kAllLanes, &lane, emulation::load_matrix_together, emulation::Orders::nothing, "ldmatrix",
                           {file, line});
}
SIMT_CALLED inline void ldmatrix_x4_trans(uint32_t (&d)[4], const void* shared_row, SIMT_HERE) {
  emulation::LoadMatrix lane{d, shared_row, __builtin_return_address(0)};
  emulation::warp_together(kAllLanes, &lane, emulation::load_matrix_transposed_together, emulation::Orders::nothing,
                           "ldmatrix.trans", {file, line});
}
SIMT_UNSEEN inline void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], SIMT_HERE) {
  emulation::MultiplyAdd lane{c, a, b};
  emulation::warp_together(kAllLanes, &lane, emulation::multiply_add_together, emulation::Orders::nothing, "mma.sync",
                           {file, line});
}
SIMT_CALLED inline void cp_async_16(void* shared, const void* global, bool in_range, SIMT_HERE) {
  emulation::copy_later(shared, global, in_range, {file, line}, __builtin_return_address(0));
}
SIMT_UNSEEN inline void cp_async_commit() { emulation::commit_copies(); }
template <int N> SIMT_UNSEEN inline void cp_async_wait() { emulation::wait_for_copies(N); }
SIMT_FN uint32_t pack_bf16(float lo, float hi) {
  return uint32_t(to<bf16>(lo).bits) | uint32_t(to<bf16>(hi).bits) << 16;
}
SIMT_FN float exp2_approximate(float x) { return exp2f(x); }

#endif

} // namespace SIMT_NS
} // namespace triax
