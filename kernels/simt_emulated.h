// The emulation's side of simt.h: CUDA's vocabulary for g++, with every thread of a block a fiber (see
// kernels/emulated/). A unit is compiled several times: at the GPU's block sizes and at smaller ones, for the address
// and undefined-behaviour sanitizers and for the race detector.
#pragma once
#include "kernels/emulated/runtime.h"
#include <tuple>
#include <type_traits>

// Static, not automatic: one copy for all threads of the block, which all belong to one thread of the host. The race
// detector knows what is thread_local for shared memory; without it, such variables get the address sanitizer's guard
// zones where their kernel is local to its unit: see SIMT_NS.
#if defined(TRIAX_RACES)
#define __shared__ static thread_local
#define SIMT_RACES true
#else
#define __shared__ static
#define SIMT_RACES false
#endif
// `inline namespace SIMT_NS {` opens a namespace without a name, so that everything in it is local to the unit.
#define SIMT_NS                                                                                                        \
  emulated {}                                                                                                          \
  namespace
#define SIMT_BACKEND SIMT_STRING(TRIAX_EMULATED)
#define SIMT_SIMD(clause)
// The caller's place, and what must not be taken for the kernel's own accesses.
#define SIMT_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define SIMT_UNSEEN __attribute__((no_sanitize("thread")))
#define SIMT_CALLED SIMT_UNSEEN __attribute__((noinline))

namespace triax {
inline namespace SIMT_NS {

constexpr bool kIsHost = false;
constexpr int kMostThreads = TRIAX_BLOCK; ///< of a block
constexpr const uint3& threadIdx = emulation::registers.threadIdx;
constexpr const uint3& blockIdx = emulation::registers.blockIdx;
constexpr const uint3& blockDim = emulation::registers.blockDim;
constexpr const uint3& gridDim = emulation::registers.gridDim;
constexpr unsigned kAllLanes = 0xffffffffu;

SIMT_UNSEEN inline void __syncthreads(SIMT_HERE) { emulation::block_barrier({file, line}); }
SIMT_UNSEEN inline void __syncwarp(unsigned mask = kAllLanes, SIMT_HERE) {
  emulation::warp_together(mask, nullptr, emulation::synchronize_together, emulation::Orders::memory, "__syncwarp",
                           {file, line});
}

SIMT_UNSEEN inline int own_lane() {
  return int((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32);
}
template <class T>
SIMT_UNSEEN inline T shuffle(unsigned mask, T v, int from, const char* what, const char* file, int line) {
  static_assert(sizeof(T) <= 8);
  emulation::Shuffle s{0, 0, from};
  memcpy(&s.in, &v, sizeof(T));
  emulation::warp_together(mask, &s, emulation::shuffle_together, emulation::Orders::nothing, what, {file, line});
  memcpy(&v, &s.out, sizeof(T));
  return v;
}
// Lanes are shuffled within groups of `width`; a lane whose source lies outside of its group keeps its own value.
template <class T> SIMT_UNSEEN inline T __shfl_sync(unsigned mask, T v, int from, int width = 32, SIMT_HERE) {
  return shuffle(mask, v, (own_lane() & -width) | (from & (width - 1)), "__shfl_sync", file, line);
}
template <class T> SIMT_UNSEEN inline T __shfl_xor_sync(unsigned mask, T v, int flip, int width = 32, SIMT_HERE) {
  const int lane = own_lane(), from = lane ^ flip;
  return shuffle(mask, v, from < (lane & -width) + width ? from : lane, "__shfl_xor_sync", file, line);
}
template <class T> SIMT_UNSEEN inline T __shfl_down_sync(unsigned mask, T v, int by, int width = 32, SIMT_HERE) {
  const int lane = own_lane();
  return shuffle(mask, v, (lane & (width - 1)) + by < width ? lane + by : lane, "__shfl_down_sync", file, line);
}
template <class T> SIMT_UNSEEN inline T __shfl_up_sync(unsigned mask, T v, int by, int width = 32, SIMT_HERE) {
  const int lane = own_lane();
  return shuffle(mask, v, (lane & (width - 1)) >= by ? lane - by : lane, "__shfl_up_sync", file, line);
}
SIMT_UNSEEN inline unsigned vote(unsigned mask, bool yes, const char* what, const char* file, int line) {
  emulation::Vote v{yes, 0};
  emulation::warp_together(mask, &v, emulation::vote_together, emulation::Orders::nothing, what, {file, line});
  return v.out;
}
SIMT_UNSEEN inline unsigned __ballot_sync(unsigned mask, int yes, SIMT_HERE) {
  return vote(mask, yes != 0, "__ballot_sync", file, line);
}
SIMT_UNSEEN inline int __any_sync(unsigned mask, int yes, SIMT_HERE) {
  return vote(mask, yes != 0, "__any_sync", file, line) != 0;
}
SIMT_UNSEEN inline int __all_sync(unsigned mask, int yes, SIMT_HERE) {
  return vote(mask, yes == 0, "__all_sync", file, line) == 0;
}

// Atomics on integers alone: a sum of floats in no fixed order changes from run to run.
template <class T, class F> SIMT_UNSEEN inline T atomic(T* p, const F& next, const void* caller) {
  static_assert(std::is_integral_v<T> && sizeof(T) >= 4, "atomics on floats would not be deterministic");
  emulation::touch(p, sizeof(T), emulation::Touch::atomic, caller);
  const T old = *p;
  *p = next(old);
  return old;
}
#define SIMT_ATOMIC(name, next)                                                                                        \
  template <class T> SIMT_CALLED T name(T* p, std::type_identity_t<T> v) {                                             \
    return atomic(                                                                                                     \
        p, [v](T old) SIMT_UNSEEN { return next; }, __builtin_return_address(0));                                      \
  }
SIMT_ATOMIC(atomicAdd, T(old + v))
SIMT_ATOMIC(atomicMax, old > v ? old : v)
SIMT_ATOMIC(atomicMin, old < v ? old : v)
SIMT_ATOMIC(atomicExch, (void(old), v))
template <class T> SIMT_CALLED T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
  return atomic(
      p, [=](T old) SIMT_UNSEEN { return old == expected ? v : old; }, __builtin_return_address(0));
}

SIMT_FN float __expf(float x) { return expf(x); }
SIMT_FN float rsqrtf(float x) { return 1.0f / sqrtf(x); }
template <class T> SIMT_FN T __ldg(const T* p) { return *p; }

/// Dynamic shared memory of the running block; not a number until it is written.
template <class T> SIMT_UNSEEN inline T* dynamic_shared() {
  return reinterpret_cast<T*>(emulation::dynamic_shared_memory());
}

template <class... P, class... A>
inline void launch(const LaunchContext&, dim3 grid, dim3 block, size_t shared, void (*kernel)(P...), A... args) {
  struct Call {
    void (*kernel)(P...);
    std::tuple<P...> args;
  } call{kernel, {static_cast<P>(args)...}};
  const auto run = [](const void* at) SIMT_UNSEEN {
    const Call& c = *static_cast<const Call*>(at);
    std::apply(c.kernel, c.args);
  };
  emulation::run_grid(grid, block, shared,
                      {run, &call, sizeof(call), reinterpret_cast<const void*>(kernel), SIMT_RACES});
}

} // namespace SIMT_NS
} // namespace triax
