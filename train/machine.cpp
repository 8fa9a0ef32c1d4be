#include "train/machine.h"
#include "kernels/check.h"
#include <algorithm>
#include <cstdlib>
#include <sched.h>
#include <thread>
#include <unistd.h>

namespace triax {
namespace {

int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : int(std::thread::hardware_concurrency());
}

} // namespace

int announced_local_size() {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"})
    if (const char* value = std::getenv(name); value && std::atoi(value) > 0) return std::atoi(value);
  return 1;
}

int choose_threads(int64_t asked, int local_size) {
  if (asked > 0) return int(asked);
  const int allowed = allowed_cores(), present = int(sysconf(_SC_NPROCESSORS_ONLN));
  return allowed < present ? allowed : std::max(1, allowed / local_size);
}

void wait_passively_if_crowded(char** arguments, int threads, int local_size) {
  if (threads * local_size <= int(sysconf(_SC_NPROCESSORS_ONLN)) || std::getenv("OMP_WAIT_POLICY")) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", arguments); // on failure the run goes on, slower
}

} // namespace triax
