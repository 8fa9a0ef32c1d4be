// The GPU of this process, its driver, and the versions of CUDA and cuDNN, for receipts.
#include "kernels/check.h"
#include "kernels/libraries.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fstream>

namespace triax {
namespace {

std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); } // 12080 is 12.8

const LibraryRegistration kRuntime("CUDA", [] {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version_text(version) : std::string();
});

const LibraryRegistration kDriver("NVIDIA driver", [] {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) return std::string();
  std::ifstream loaded("/sys/module/nvidia/version");
  std::string release;
  loaded >> release;
  return concat(release.empty() ? "unknown" : release, ", for CUDA ", version_text(version));
});

const LibraryRegistration kGpu("GPU", [] {
  int device = 0;
  cudaDeviceProp properties;
  if (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    cudaGetLastError();
    return std::string();
  }
  return concat(properties.name, ", ", properties.multiProcessorCount, " SMs, ", properties.totalGlobalMem >> 20,
                " MiB");
});

/// Of the library that attention has opened, if it has.
const LibraryRegistration kCudnn("cuDNN", [] {
  void* library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_NOLOAD);
  if (!library) return std::string();
  const auto get = reinterpret_cast<size_t (*)()>(dlsym(library, "cudnnGetVersion"));
  const size_t v = get ? get() : 0; // 91002 is 9.10.2
  dlclose(library);
  return v ? concat(v / 10000, ".", v / 100 % 100, ".", v % 100) : std::string();
});

} // namespace
} // namespace triax
