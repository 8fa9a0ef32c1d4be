// Which kernels were launched, with how much dynamic shared memory: what a compiler cannot say of them.
#include "kernels/check.h"
#include "kernels/emulated/block.h"
#include "kernels/emulated/emulation.h"
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>

namespace triax::emulation {
namespace {

/// By the kernel's function. When the process ends, it writes what TRIAX_LAUNCHES asks for.
struct Launches {
  std::map<const void*, Launched> all;
  ~Launches() {
    const char* path = std::getenv("TRIAX_LAUNCHES");
    if (!path || !*path || all.empty()) return;
    std::ofstream file(path, std::ios::app);
    for (const Launched& one : named()) file << one.shared << ' ' << one.threads << ' ' << one.kernel << '\n';
  }
  std::vector<Launched> named() const {
    std::vector<const void*> functions;
    std::vector<Launched> list;
    for (const auto& [function, one] : all) {
      functions.push_back(function);
      list.push_back(one);
    }
    const std::vector<std::string> names = names_of_functions(functions);
    for (size_t i = 0; i < list.size(); ++i) list[i].kernel = names[i];
    return list;
  }
};
Launches launches;

} // namespace

void note_launch() {
  Launched& one = launches.all[block.kernel.function];
  one.threads = std::max(one.threads, block.size);
  one.shared = std::max(one.shared, block.shared_bytes);
}

std::vector<Launched> launched() { return launches.named(); }

} // namespace triax::emulation
