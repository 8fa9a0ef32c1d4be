// A shuffle of 0..n-1 that is computed, not stored.
#pragma once
#include <cstdint>

namespace triax {

/// Where `index` of [0, size) goes under the permutation that `key` names: a Feistel network over the next power of
/// four, walked along its cycle until it is back in range (Black & Rogaway 2002, "Ciphers with Arbitrary Finite
/// Domains").
int64_t permuted(int64_t index, int64_t size, uint64_t key);

/// Two words mixed into one, for keys.
uint64_t mix64(uint64_t a, uint64_t b);

} // namespace triax
