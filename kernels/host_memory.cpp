#include "kernels/host_memory.h"
#include "kernels/check.h"
#include <algorithm>
#include <fstream>
#include <sys/mman.h>

namespace triax {

uint64_t map_host_memory(int64_t bytes) {
  void* at = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  DEMAND(at != MAP_FAILED, "not enough memory: ", bytes >> 20, " MiB could not be mapped");
  if (bytes >= (int64_t(2) << 20)) madvise(at, size_t(bytes), MADV_HUGEPAGE);
  return reinterpret_cast<uint64_t>(at);
}

void unmap_host_memory(uint64_t address, int64_t bytes) { munmap(reinterpret_cast<void*>(address), size_t(bytes)); }

int64_t available_host_memory() {
  std::ifstream info("/proc/meminfo");
  int64_t best = INT64_MAX;
  for (std::string word; info >> word;)
    if (int64_t kib = 0; word == "MemAvailable:" && info >> kib) best = kib * 1024;
  std::ifstream limit("/sys/fs/cgroup/memory.max"), current("/sys/fs/cgroup/memory.current");
  if (int64_t most = 0, used = 0; limit >> most && current >> used) best = std::min(best, most - used);
  return best;
}

} // namespace triax
