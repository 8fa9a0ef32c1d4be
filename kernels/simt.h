// The language of the kernels: natural CUDA, compiled by nvcc for the GPU, by g++ for the host, and by g++ for the
// emulation of a GPU, which the tests run. On the host a block is one thread, so that
// `for (i = threadIdx.x * V; i < n; i += Block * V)` is a contiguous loop that vectorises, and the grid is a parallel
// loop. In the emulation every thread is a fiber, and every access is watched.
//
// kernels/X.cu is compiled in all three ways; kernels/X_cuda.cu not for the host, which has its own in kernels/host/;
// kernels/cuda/X.cu by nvcc alone: what calls CUDA's libraries, and kernels that the emulation cannot run.
//
// Rules that let one source serve all: template on Block and V; a block owns one contiguous chunk; no division in
// inner loops; no early return before a barrier; reductions only by block_reduce; the number of partial sums never
// depends on cores. And for the emulation: blocks of a launch share nothing but by atomics; lanes see each other's
// shared memory only after __syncwarp; no thread waits for another by reading memory.
#pragma once
#include "kernels/op.h"
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include "kernels/simt_cuda.h"
#elif defined(TRIAX_EMULATED)
#include "kernels/simt_emulated.h"
#else
#include "kernels/simt_host.h"
#endif

namespace triax {
inline namespace SIMT_NS {

// An aggregate without constructors, so that `__shared__ bf16 s[N]` needs no initialiser; the scoped enum makes
// bf16(1.0f) an error.
struct bf16 {
  enum class Bits : uint16_t {};
  Bits bits;
  SIMT_FN operator float() const {
    const uint32_t u = uint32_t(bits) << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
  }
  static SIMT_FN bf16 from_bits(uint16_t b) { return bf16{Bits(b)}; }
};
static_assert(sizeof(bf16) == 2);

SIMT_FN uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}
SIMT_FN float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

template <class T> SIMT_FN T to(float f);
template <> SIMT_FN float to<float>(float f) { return f; }
/// The upper half is f as a bf16, rounded to nearest even; NaN stays NaN.
SIMT_FN uint32_t bf16_above(float f) {
  const uint32_t u = bits_of(f);
  return f != f ? u | 0x00400000u : u + 0x7fffu + ((u >> 16) & 1u);
}
template <> SIMT_FN bf16 to<bf16>(float f) { return bf16::from_bits(uint16_t(bf16_above(f) >> 16)); }

/// The host converts two bf16 as the halves of a word: half of the instructions that single ones take.
template <int V, class T> constexpr bool kPair = kIsHost&& V == 2 && sizeof(T) == 2;

/// V consecutive elements as floats: 128-bit loads on the GPU (p aligned to them), a plain loop on the host.
template <int V, class T> SIMT_DEV void load(float (&d)[V], const T* p) {
  constexpr int kBytes = V * int(sizeof(T));
  if constexpr (kPair<V, T>) {
    uint32_t word;
    memcpy(&word, p, 4);
    d[0] = float_of(word << 16);
    d[1] = float_of(word & 0xffff0000u);
    return;
  }
  if constexpr (!kIsHost && kBytes % 16 == 0) {
    constexpr int kPer = 16 / int(sizeof(T));
    SIMT_UNROLL
    for (int c = 0; c < kBytes / 16; ++c) {
      const uint4 raw = reinterpret_cast<const uint4*>(p)[c];
      T t[kPer];
      memcpy(t, &raw, 16);
      SIMT_UNROLL
      for (int k = 0; k < kPer; ++k) d[c * kPer + k] = float(t[k]);
    }
  } else {
    SIMT_UNROLL
    for (int k = 0; k < V; ++k) d[k] = float(p[k]);
  }
}
template <int V, class T> SIMT_DEV void store(T* p, const float (&s)[V]) {
  constexpr int kBytes = V * int(sizeof(T));
  if constexpr (kPair<V, T>) {
    const uint32_t word = (bf16_above(s[0]) >> 16) | (bf16_above(s[1]) & 0xffff0000u);
    memcpy(p, &word, 4);
    return;
  }
  if constexpr (!kIsHost && kBytes % 16 == 0) {
    constexpr int kPer = 16 / int(sizeof(T));
    SIMT_UNROLL
    for (int c = 0; c < kBytes / 16; ++c) {
      T t[kPer];
      SIMT_UNROLL
      for (int k = 0; k < kPer; ++k) t[k] = to<T>(s[c * kPer + k]);
      uint4 raw;
      memcpy(&raw, t, 16);
      reinterpret_cast<uint4*>(p)[c] = raw;
    }
  } else {
    SIMT_UNROLL
    for (int k = 0; k < V; ++k) p[k] = to<T>(s[k]);
  }
}

struct Sum {
  SIMT_DEV float operator()(float a, float b) const { return a + b; }
};
struct Max {
  SIMT_DEV float operator()(float a, float b) const { return a > b ? a : b; }
};

/// Combines one value per thread in a fixed order; all threads get the result. The identity where Block is 1.
template <int Block, class Combine> SIMT_DEV float block_reduce(float v, Combine combine) {
  if constexpr (Block > 1) {
    static_assert(Block % 32 == 0);
    SIMT_UNROLL
    for (int o = 16; o > 0; o >>= 1) v = combine(v, __shfl_xor_sync(0xffffffffu, v, o));
    if constexpr (Block > 32) {
      __shared__ float part[Block / 32];
      __syncthreads(); // the previous reduction's readers are done with part[]
      if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
      __syncthreads();
      v = part[0];
      SIMT_UNROLL
      for (int i = 1; i < Block / 32; ++i) v = combine(v, part[i]);
    }
  }
  return v;
}
template <int Block> SIMT_DEV float block_sum(float v) { return block_reduce<Block>(v, Sum{}); }
template <int Block> SIMT_DEV float block_max(float v) { return block_reduce<Block>(v, Max{}); }

/// Philox4x32-10 (Salmon et al. 2011): four random words for a counter and a key.
struct Random4 {
  uint32_t x, y, z, w;
};
SIMT_FN Random4 philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
  SIMT_UNROLL
  for (int r = 0; r < 10; ++r) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
    c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = uint32_t(p1);
    c3 = uint32_t(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

/// Adds 16 random bits below the bf16 mantissa and truncates; infinities and NaN are kept.
SIMT_FN bf16 to_bf16_stochastic(float f, uint32_t random) {
  uint32_t u;
  memcpy(&u, &f, 4);
  const uint32_t r = (u & 0x7f800000u) == 0x7f800000u ? u : u + (random & 0xffffu);
  return bf16::from_bits(uint16_t(r >> 16));
}

/// Calls f with a value of the element type: the one bridge from a tensor's dtype to templates.
template <class F> void with_float_type(Dtype dtype, F&& f) {
  if (dtype == Dtype::bf16)
    f(bf16{});
  else
    f(float{});
}

/// Block and vector width for each target: the host's one thread leaves the loop to the vectoriser (V = 1) or owns a
/// tile (V = Tile).
template <int Gpu> constexpr int kBlock = Gpu < kMostThreads ? Gpu : kMostThreads;
/// Elements of one 128-bit access on the GPU; `Host` elements of a tile on the host.
template <class T, int Host> constexpr int kVector = kIsHost ? Host : 16 / int(sizeof(T));
/// For loops that the vectoriser takes: single floats, pairs of bf16.
template <class T> constexpr int kLoop = kVector<T, sizeof(T) == 2 ? 2 : 1>;

SIMT_FN int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

} // namespace SIMT_NS
} // namespace triax

#define SIMT_STRING_(x) #x
#define SIMT_STRING(x) SIMT_STRING_(x)
/// Makes `launch` the implementation of the operation `kind` for what this unit is compiled for.
#define REGISTER_LAUNCH(kind, launch)                                                                                  \
  static const ::triax::LaunchRegistration registration_##launch(SIMT_BACKEND, kind, launch)
/// Another implementation beside it, under a name that `kernels.KIND` in the configuration chooses.
#define REGISTER_IMPLEMENTATION(kind, name, launch)                                                                    \
  static const ::triax::LaunchRegistration registration_##launch(SIMT_BACKEND, kind, launch, name)
