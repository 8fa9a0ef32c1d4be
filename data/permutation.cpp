#include "data/permutation.h"
#include "kernels/check.h"
#include <bit>

namespace triax {
namespace {

constexpr int kRounds = 8;

/// SplitMix64's finaliser (Steele, Lea, Flood 2014).
uint64_t finalise(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

} // namespace

uint64_t mix64(uint64_t a, uint64_t b) { return finalise(finalise(a + 0x9e3779b97f4a7c15u) + b + 0x9e3779b97f4a7c15u); }

int64_t permuted(int64_t index, int64_t size, uint64_t key) {
  ENSURE(index >= 0 && index < size, "index ", index, " of a permutation of ", size);
  const int half = (std::bit_width(static_cast<uint64_t>(size - 1)) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  uint64_t value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half, right = value & mask;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (mix64(key + static_cast<uint64_t>(round), right) & mask);
      left = right;
      right = next;
    }
    value = left << half | right;
  } while (value >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(value);
}

} // namespace triax
