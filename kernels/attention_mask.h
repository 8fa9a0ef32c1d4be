// Which keys a query of causal attention sees: one range, from its document's start or its window's to itself.
#pragma once
#include "kernels/simt.h"

namespace triax {
inline namespace SIMT_NS {

/// The first key that position t of its sequence sees. All that a window (0: none) does is to start later.
SIMT_FN int32_t attention_first_key(int32_t document_start, int32_t t, int32_t window) {
  return window > 0 && t - window >= document_start ? t - window + 1 : document_start;
}

} // namespace SIMT_NS
} // namespace triax
