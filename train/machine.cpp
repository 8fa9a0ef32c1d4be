#include "train/machine.h"
#include "kernels/check.h"
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sched.h>
#include <sstream>
#include <unistd.h>

namespace triax {
namespace {

int cores_of(pid_t process) {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(process, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

pid_t parent_of(pid_t process) {
  std::ifstream stat(concat("/proc/", process, "/stat"));
  std::string text(std::istreambuf_iterator<char>(stat), {});
  const size_t name_end = text.rfind(')'); // the name may hold anything
  int parent = 0;
  char state = 0;
  if (name_end != std::string::npos) std::istringstream(text.substr(name_end + 1)) >> state >> parent;
  return parent;
}

/// Cores of this job on this host: what the launcher above the ranks may use, whatever it bound each of them to.
int job_cores() {
  int most = cores_of(0);
  for (pid_t p = getpid(); p > 1; p = parent_of(p)) most = std::max(most, cores_of(p));
  return std::max(most, 1);
}

} // namespace

int announced_local_size() {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"})
    if (const char* value = std::getenv(name); value && std::atoi(value) > 0) return std::atoi(value);
  return 1;
}

int choose_threads(int64_t asked, int local_size) {
  if (asked > 0) return int(asked);
  const int mine = cores_of(0), all = job_cores();
  return mine < all ? mine : std::max(1, all / local_size);
}

void wait_passively_if_crowded(char** arguments, int threads, int local_size) {
  if (threads * local_size <= job_cores() || std::getenv("OMP_WAIT_POLICY")) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", arguments); // on failure the run goes on, slower
}

} // namespace triax
