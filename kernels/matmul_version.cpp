// The version of oneDNN, for receipts.
#include "kernels/check.h"
#include "kernels/libraries.h"
#include <oneapi/dnnl/dnnl.h>

namespace triax {
namespace {

const LibraryRegistration kOneDnn("oneDNN", [] {
  const dnnl_version_t* v = dnnl_version();
  return concat(v->major, ".", v->minor, ".", v->patch);
});

} // namespace
} // namespace triax
