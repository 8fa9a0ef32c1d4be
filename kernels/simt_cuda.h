// The GPU's side of simt.h.
#pragma once
#include <cuda_runtime.h>

#define SIMT_NS on_gpu
#define SIMT_BACKEND "cuda"
#define SIMT_FN __host__ __device__ __forceinline__
#define SIMT_DEV __device__ __forceinline__
#define SIMT_UNROLL _Pragma("unroll")
#define SIMT_SIMD(clause)

namespace triax {
inline namespace SIMT_NS {

constexpr bool kIsHost = false;
constexpr int kMostThreads = 1024; ///< of a block

template <class T> SIMT_DEV T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char simt_dynamic_shared[];
  return reinterpret_cast<T*>(simt_dynamic_shared);
}

/// Throws with CUDA's own words where `status` is not success.
void check_cuda(cudaError_t status, const char* what);

template <class... P, class... A> inline void launch(const LaunchContext& context, dim3 grid, dim3 block, size_t shared,
                                                     void (*kernel)(P...), A... args) {
  if (shared > 48 * 1024)
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    int(shared)),
               "dynamic shared memory");
  kernel<<<grid, block, shared, static_cast<cudaStream_t>(context.native_stream)>>>(static_cast<P>(args)...);
  check_cuda(cudaGetLastError(), "kernel launch");
}

} // namespace SIMT_NS
} // namespace triax
