#include "model/planted.h"
#include "kernels/check.h"
#include <cstdlib>

namespace triax {
namespace {

#ifdef TRIAX_PLANTED_FAULTS
bool is_planted(const std::string& fault) {
  const char* planted = std::getenv("TRIAX_PLANT");
  return planted && fault == planted;
}
#else
bool is_planted(const std::string&) { return false; }
#endif

} // namespace

bool planted_skip_of_reduction(const std::string& unit) { return is_planted("skip_reduction:" + unit); }

bool planted_deviation(int rank, int64_t step) { return is_planted(concat("deviate:", rank, ":", step)); }

} // namespace triax
