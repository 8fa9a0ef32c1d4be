// Which keys a query of causal attention sees: one range of them, from its document's start or its window's to itself.
#pragma once
#include "kernels/simt.h"
#include "kernels/step_state.h"

namespace triax {
inline namespace SIMT_NS {

/// Where in their sequence the queries and the keys of one operation lie, see AttentionPart. The positions of a rank's
/// rows rise, so that what a query sees is one range of another rank's rows too.
struct AttentionContext {
  int32_t ranks = 1, queries_of = 0, keys_of = 0; ///< ranks of the context group
  int32_t half = 0;                               ///< rows of a chunk, of which each rank has two
  AttentionContext() = default;
  /// `state` is read where there are several ranks.
  SIMT_FN AttentionContext(const StepState* state, int32_t ranks_in, int32_t step, int64_t sequence) : ranks(ranks_in) {
    if (ranks == 1) return;
    queries_of = state->context_rank;
    keys_of = (queries_of - step + ranks) % ranks;
    half = int32_t(sequence / 2);
  }
  /// Are queries and keys the same rows? Then row t sees itself last.
  SIMT_FN bool is_own() const { return queries_of == keys_of; }
  SIMT_FN int32_t second_of(int32_t rank) const { return (2 * ranks - 1 - rank) * half; }
  SIMT_FN int32_t position(int32_t row) const {
    return row < half ? queries_of * half + row : second_of(queries_of) + row - half;
  }
  /// How many of the keys lie before a position.
  SIMT_FN int32_t keys_before(int32_t at) const {
    const auto of_chunk = [this, at](int32_t first) {
      const int32_t n = at - first;
      return n < 0 ? 0 : n < half ? n : half;
    };
    return of_chunk(keys_of * half) + of_chunk(second_of(keys_of));
  }
};

/// The first and the last key that a query sees; none where `last` comes before `first`.
struct AttentionKeys {
  int32_t first, last;
};
/// Of row t of its sequence. All that a window (0: none) does is to start later.
SIMT_FN AttentionKeys attention_keys(const AttentionContext& c, int32_t document_start, int32_t t, int32_t window) {
  const int32_t at = c.ranks == 1 ? t : c.position(t);
  const int32_t from = window > 0 && at - window >= document_start ? at - window + 1 : document_start;
  if (c.ranks == 1) return {from, t};
  return {c.keys_before(from), c.keys_before(at + 1) - 1};
}

} // namespace SIMT_NS
} // namespace triax
