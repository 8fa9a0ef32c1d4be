// CUDA's vocabulary for g++, as far as the host and the emulation say it alike.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// __noinline__ stays undefined: libstdc++ writes __attribute__((__noinline__))

#define SIMT_CONCAT_(a, b) a##b
#define SIMT_CONCAT(a, b) SIMT_CONCAT_(a, b)
#define SIMT_FN inline __attribute__((always_inline))
#define SIMT_DEV SIMT_FN
#define SIMT_UNROLL

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct uint3 {
  unsigned x, y, z;
};
// may_alias: a bf16 array is read through them
struct __attribute__((may_alias, aligned(8))) uint2 {
  unsigned x, y;
};
struct __attribute__((may_alias, aligned(16))) uint4 {
  unsigned x, y, z, w;
};
struct __attribute__((may_alias, aligned(8))) float2 {
  float x, y;
};
struct __attribute__((may_alias, aligned(16))) float4 {
  float x, y, z, w;
};
