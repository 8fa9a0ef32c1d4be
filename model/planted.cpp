#include "model/planted.h"
#ifdef TRIAX_PLANTED_FAULTS
#include "kernels/check.h"
#include <csignal>
#include <cstdlib>
#include <unistd.h>
#endif

namespace triax {

#ifdef TRIAX_PLANTED_FAULTS
namespace {
bool is_planted(const std::string& fault) {
  const char* planted = std::getenv("TRIAX_PLANT");
  return planted && fault == planted;
}
} // namespace

bool planted_skip_of_reduction(const std::string& unit) { return is_planted("skip_reduction:" + unit); }
bool planted_deviation(int rank, int64_t step) { return is_planted(concat("deviate:", rank, ":", step)); }
void planted_sleep(int rank, int64_t step) {
  if (is_planted(concat("stop:", rank, ":", step))) raise(SIGSTOP);
  while (is_planted(concat("sleep:", rank, ":", step))) sleep(1);
}
void planted_slow_save() {
  if (is_planted("slow_save")) sleep(6);
}
#else
bool planted_skip_of_reduction(const std::string&) { return false; }
bool planted_deviation(int, int64_t) { return false; }
void planted_sleep(int, int64_t) {}
void planted_slow_save() {}
#endif

} // namespace triax
