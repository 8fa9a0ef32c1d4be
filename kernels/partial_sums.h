// Sums over many rows are taken in chunks, each by one block, and the chunks' sums are added in their order.
#pragma once
#include "kernels/op.h"

namespace triax {

/// The number of chunks: by the kind of target alone, so that the order of a sum never depends on the machine. A host's
/// few threads need few; a GPU's 256 keep every multiprocessor of today's busy.
TRIAX_INLINE int64_t partial_sums(bool host, int64_t rows) {
  const int64_t some = host ? (rows + 15) / 16 : rows, most = host ? 64 : 256;
  return some < most ? some : most;
}

} // namespace triax
