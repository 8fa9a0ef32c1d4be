// The host's side of simt.h: CUDA's vocabulary for g++, with blocks of one thread.
#pragma once
#include "kernels/simt_words.h"

#define __shared__ /* automatic: the block is one thread */
#define SIMT_NS SIMT_CONCAT(host_, TRIAX_HOST_LEVEL)
#define SIMT_BACKEND SIMT_STRING(TRIAX_HOST_LEVEL)
#define SIMT_PRAGMA(x) _Pragma(#x)
#define SIMT_SIMD(clause) SIMT_PRAGMA(omp simd clause) // for reductions that do not vectorise without (max)

namespace triax {
inline namespace SIMT_NS {

constexpr bool kIsHost = true;
constexpr int kMostThreads = 1; ///< of a block
inline constexpr uint3 threadIdx{0, 0, 0};
inline thread_local uint3 blockIdx{0, 0, 0};
inline thread_local uint3 gridDim{1, 1, 1};
SIMT_FN void __syncthreads() {}
template <class T> SIMT_FN T __shfl_xor_sync(unsigned, T v, int) { return v; }

/// exp without branches, so that it vectorises with any libm: at most 2 ulp on [-87, 88], 0 below, huge above (Cephes
/// expf).
SIMT_FN float __expf(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 88.7f ? 88.7f : x;
  const float n = __builtin_rintf(x * 1.44269504f);
  float r = __builtin_fmaf(n, -0.693359375f, x);
  r = __builtin_fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // The scale in two steps keeps tiny results exact enough and the exponent in range.
  const int32_t e = int32_t(n), e1 = e >> 1, e2 = e - e1;
  const uint32_t u1 = uint32_t(e1 + 127) << 23, u2 = uint32_t(e2 + 127) << 23;
  float s1, s2;
  __builtin_memcpy(&s1, &u1, 4);
  __builtin_memcpy(&s2, &u2, 4);
  return p * s1 * s2;
}
SIMT_FN float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }

/// Dynamic shared memory of the running block; each host thread has its own.
struct SharedMemory {
  void* bytes = nullptr;
  size_t size = 0;
  ~SharedMemory() { free(bytes); }
};
inline thread_local SharedMemory shared_memory;
template <class T> SIMT_FN T* dynamic_shared() { return static_cast<T*>(shared_memory.bytes); }

/// Runs the kernel for every block of the grid, spread over the compute team.
template <class... P, class... A>
inline void launch(const LaunchContext& context, dim3 grid, dim3, size_t shared, void (*kernel)(P...), A... args) {
  const int64_t blocks = int64_t(grid.x) * grid.y * grid.z;
#pragma omp parallel num_threads(context.threads) if (blocks > 1)
  {
    if (shared_memory.size < shared) {
      free(shared_memory.bytes);
      shared_memory.bytes = aligned_alloc(128, (shared + 127) / 128 * 128);
      shared_memory.size = shared;
    }
    gridDim = uint3{grid.x, grid.y, grid.z};
#pragma omp for schedule(static)
    for (int64_t b = 0; b < blocks; ++b) {
      blockIdx = uint3{unsigned(b % grid.x), unsigned(b / grid.x % grid.y), unsigned(b / grid.x / grid.y)};
      kernel(static_cast<P>(args)...);
    }
  }
}

} // namespace SIMT_NS
} // namespace triax
