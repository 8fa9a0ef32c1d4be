// The version of cuBLASLt, for receipts.
#include "kernels/check.h"
#include "kernels/libraries.h"
#include <cublasLt.h>

namespace triax {
namespace {

const LibraryRegistration kCublasLt("cuBLASLt", [] {
  const size_t v = cublasLtGetVersion(); // 130102 is 13.1.2
  return concat(v / 10000, ".", v / 100 % 100, ".", v % 100);
});

} // namespace
} // namespace triax
