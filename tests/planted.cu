// Small kernels with one planted fault each, and their repaired twins: operations that the emulation must and must not
// complain about. The line that is reported ends in "// at NAME". All have the same operands: out f32[1024],
// in f32[1024], scratch f32[256].
#include "kernels/mma.h"

namespace triax {
inline namespace SIMT_NS {

// A kernel of its own name, its launch with so many blocks, threads and bytes of shared memory, and then its body.
#define PLANT(name, blocks, threads, shared)                                                                           \
  template <bool Fault> __global__ void name(float* out, const float* in, float* scratch);                             \
  static void launch_##name(const Op& op, const LaunchContext& context) {                                              \
    launch(context, dim3(blocks), dim3(threads), shared, op.get<int32_t>() ? &name<true> : &name<false>,               \
           op[0].data<float>(), op[1].data<float>(), context.scratch.data<float>());                                   \
  }                                                                                                                    \
  REGISTER_LAUNCH(#name, launch_##name);                                                                               \
  template <bool Fault>                                                                                                \
  __global__ void name([[maybe_unused]] float* out, [[maybe_unused]] const float* in, [[maybe_unused]] float* scratch)

/// The thread's number. Not inlined, so that the compiler does not know it.
__attribute__((noinline)) SIMT_UNSEEN inline int me() { return int(threadIdx.x); }
/// The same address. Not inlined, so that the compiler does not know of which variable.
__attribute__((noinline)) SIMT_UNSEEN inline float* same(float* p) { return p; }

// ---- order ----

PLANT(missing_barrier, 1, 256, 0) {
  __shared__ float s[256];
  s[me()] = in[me()];
  if (!Fault) __syncthreads();
  out[me()] = s[me() > 0 ? me() - 1 : 0]; // at missing_barrier
}
PLANT(early_overwrite, 1, 256, 0) {
  __shared__ float part[1];
  float sum = 0;
  for (int round = 0; round < 2; ++round) {
    if (me() == 0) part[0] = in[round]; // at early_overwrite
    __syncthreads();
    sum += part[0];
    if (!Fault) __syncthreads();
  }
  out[me()] = sum;
}
PLANT(race_between_blocks, 2, 64, 0) {
  out[Fault ? me() : me() + 64 * int(blockIdx.x)] += 1; // at race_between_blocks
}
PLANT(read_of_other_block, 2, 64, 0) {
  const int own = me() + 64 * int(blockIdx.x);
  out[own] = in[own];
  if (own == 64) out[own] += Fault ? out[0] : in[0]; // at read_of_other_block
}
PLANT(two_write_one, 1, 256, 0) {
  if (Fault || me() == 0) out[0] = 1; // at two_write_one
}
PLANT(atomic_and_plain, 1, 64, 0) {
  int* count = reinterpret_cast<int*>(out);
  atomicAdd(count, 1);
  if (Fault && me() == 3) *count = 0; // at atomic_and_plain
}
PLANT(missing_syncwarp, 1, 32, 0) {
  __shared__ float s[32];
  s[me()] = in[me()];
  if (!Fault) __syncwarp();
  out[me()] = s[me() & ~1]; // at missing_syncwarp
}
PLANT(half_syncwarp, 1, 32, 0) { // each half knows of itself alone
  __shared__ float s[32];
  s[me()] = in[me()];
  __syncwarp(Fault ? (me() < 16 ? 0x0000ffffu : 0xffff0000u) : kAllLanes);
  out[me()] = s[me() % 16]; // at half_syncwarp
}

// ---- shared memory that nobody wrote, or not yet ----

PLANT(unwritten_shared, 1, 64, 0) {
  __shared__ float s[64];
  if (!Fault || me() != 7) s[me()] = in[me()];
  __syncthreads();
  out[me()] = s[me()]; // at unwritten_shared
}
PLANT(left_by_other_block, 2, 64, 256) {
  float* s = dynamic_shared<float>();
  if (!Fault || blockIdx.x == 0) s[me()] = in[me()];
  __syncthreads();
  out[me() + 64 * int(blockIdx.x)] = s[me()]; // at left_by_other_block
}
template <int Open> SIMT_DEV void copy_and_read(float* out, const float* in, bool wait) {
  __shared__ __align__(16) float s[256];
  cp_async_16(s + 4 * me(), in + 4 * me(), true);
  cp_async_commit();
  if (wait) cp_async_wait<Open>();
  __syncthreads();
  out[me()] = s[255 - me()]; // at missing_wait, weak_wait
  cp_async_wait<0>();
}
PLANT(missing_wait, 1, 64, 0) { copy_and_read<0>(out, in, !Fault); }
PLANT(weak_wait, 1, 64, 0) { copy_and_read<Fault ? 1 : 0>(out, in, true); }
PLANT(copy_into_what_is_read, 1, 64, 0) {
  __shared__ __align__(16) float s[256];
  for (int k = 0; k < 4; ++k) s[4 * me() + k] = in[4 * me() + k];
  __syncthreads();
  out[me()] = s[255 - me()];
  if (!Fault) __syncthreads();
  cp_async_16(s + 4 * me(), in + 4 * me(), true); // at copy_into_what_is_read
  cp_async_commit();
  __syncthreads();
  cp_async_wait<0>();
}
PLANT(copy_without_wait, 1, 32, 512) {
  cp_async_16(dynamic_shared<float>() + 4 * me(), in + 4 * me(), true); // at copy_without_wait
  cp_async_commit();
  if (!Fault) cp_async_wait<0>();
}

// ---- not all come ----

PLANT(divergent_barrier, 1, 256, 0) {
  if (!Fault || me() < 128) __syncthreads(); // at divergent_barrier
  out[me()] = 1;
}
PLANT(two_barriers, 1, 256, 0) {
  if (Fault && me() < 128) {
    __syncthreads();
  } else {
    __syncthreads(); // at two_barriers
  }
}
PLANT(early_return, 1, 256, 0) {
  if (Fault && me() < 56) return;
  __syncthreads(); // at early_return
  out[me()] = 1;
}
PLANT(divergent_shuffle, 1, 64, 0) {
  float v = in[me()];
  if (!Fault || me() % 32 >= 16) v = __shfl_xor_sync(kAllLanes, v, 8); // at divergent_shuffle
  out[me()] = v;
}
PLANT(barrier_and_shuffle, 1, 32, 0) { // a deadlock
  float v = in[me()];
  if (Fault && me() < 16) __syncthreads();
  v = __shfl_xor_sync(kAllLanes, v, 8); // at barrier_and_shuffle
  out[me()] = v;
}
PLANT(shuffle_outside_mask, 1, 32, 0) {
  if (me() < 16) out[me()] = __shfl_sync(0x0000ffffu, in[me()], Fault ? 20 : 2); // at shuffle_outside_mask
}
PLANT(not_in_mask, 1, 32, 0) {
  if (!Fault || me() < 17) out[me()] = float(__ballot_sync(Fault ? 0x0000ffffu : kAllLanes, 1)); // at not_in_mask
}
PLANT(different_masks, 1, 32, 0) {
  out[me()] = float(__any_sync(Fault && me() > 4 ? 0x7fffffffu : kAllLanes, me() == 3)); // at different_masks
}
PLANT(endless_wait, 1, 64, 0) {
  __shared__ volatile int flag[1];
  if (me() == 40) flag[0] = Fault ? 0 : 1;
  __syncthreads();
  const bool waits = me() == 40;
  for (; waits && flag[0] == 0;) continue; // at endless_wait
  if (Fault && me() == 0) flag[0] = 1;
}

// ---- places ----

PLANT(static_overflow, 1, 256, 0) {
  __shared__ float s[256];
  float* p = same(s) + me();
  p[Fault ? 1 : 0] = in[me()]; // at static_overflow
}
PLANT(index_overflow, 1, 256, 0) {
  __shared__ float s[256];
  s[Fault ? me() + 1 : me()] = in[me()]; // at index_overflow
  out[me()] = s[me()];
}
PLANT(dynamic_overflow, 1, 256, 1024) {
  dynamic_shared<float>()[me() + (Fault ? 1 : 0)] = in[me()]; // at dynamic_overflow
}
PLANT(global_overflow, 2, 512, 0) {
  out[int(blockIdx.x) * 512 + me() + (Fault ? 1 : 0)] = 1; // at global_overflow
}
PLANT(read_before_begin, 1, 64, 0) {
  out[me()] = in[Fault ? me() - 1 : me()]; // at read_before_begin
}
PLANT(scratch_overflow, 1, 256, 0) {
  scratch[Fault && me() == 255 ? 256 : me()] = 1; // at scratch_overflow
}
PLANT(use_after_free, 1, 64, 0) {
  out[me()] = in[me()]; // at use_after_free
}
PLANT(misaligned_vector, 1, 64, 0) {
  float v[4];
  load<4>(v, in + 4 * me() + (Fault && me() == 5 ? 1 : 0)); // at misaligned_vector
  out[me()] = v[0];
}
PLANT(misaligned_copy, 1, 8, 256) {
  cp_async_16(dynamic_shared<float>() + 4 * me(), in + 4 * me() + (Fault ? 2 : 0), true); // at misaligned_copy
  cp_async_commit();
  cp_async_wait<0>();
}
PLANT(misaligned_ldmatrix, 1, 32, 1024) {
  float* s = dynamic_shared<float>();
  for (int i = me(); i < 256; i += 32) s[i] = in[i];
  __syncwarp();
  uint32_t d[4];
  ldmatrix_x4(d, s + 4 * me() + (Fault && me() == 9 ? 1 : 0)); // at misaligned_ldmatrix
  out[me()] = float(d[0]);
}

// ---- undefined arithmetic, undeclared accesses ----

PLANT(signed_overflow, 1, 64, 0) {
  int n = 0x7fffffff - 40;
  n += Fault ? me() : 0; // at signed_overflow
  out[me()] = float(n);
}
PLANT(wide_shift, 1, 64, 0) {
  out[me()] = float(1 << (Fault ? me() : me() % 31)); // at wide_shift
}
PLANT(write_to_input, 1, 64, 0) {
  (Fault ? const_cast<float*>(in) : out)[me()] = 1; // at write_to_input
}
PLANT(read_of_output, 1, 64, 0) {
  const float v = Fault ? scratch[me()] : in[me()]; // at read_of_output
  scratch[me()] = v;
  out[me()] = scratch[me()];
}
PLANT(write_of_gap, 1, 8, 0) {
  out[128 * me() + (Fault ? 96 : 95)] = 1; // at write_of_gap
}

} // namespace SIMT_NS
} // namespace triax
