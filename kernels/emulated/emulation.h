// A GPU that is emulated on the host, for tests. While an `Emulation` lives, devices of GPU targets are opened on the
// host's memory and run the emulated kernels at once, in the thread that issues them; an operation that has no kernel
// of its own there, such as a product of matrices, is the host's.
#pragma once
#include "kernels/device.h"

namespace triax::emulation {

/// The order in which threads that could run do, and blocks. A kernel must give the same bits in all.
enum class Order : uint8_t { forward, reverse, shuffled };

class Emulation {
public:
  /// `units` is what the kernels were compiled as: "emulated" (with the build's sanitizers), "races" (with the race
  /// detector), "races_small" (the same with blocks of at most 64 threads).
  explicit Emulation(const char* units, Order order = Order::forward, uint64_t seed = 0);
  ~Emulation();
  Emulation(const Emulation&) = delete;
  Emulation& operator=(const Emulation&) = delete;

private:
  std::unique_ptr<Backend> (*before_)(const Target&);
};

/// Holds every access of the launches in its scope, by the race detector, to what the operation declares: reads of what
/// it reads or has written itself, writes to what it writes. An emulated device does so for each operation.
class Declared {
public:
  Declared(const Op& op, const Tensor& scratch);
  ~Declared();
  Declared(const Declared&) = delete;
  Declared& operator=(const Declared&) = delete;
};

/// Bytes of global memory that threads load and store: every access counts, whatever a cache would spare.
struct Moved {
  int64_t read = 0, written = 0;
};
/// By the last operation that an emulated device ran, or that was declared; nothing but with the race detector.
Moved moved();

/// A kernel that was launched, and the most of its launches so far.
struct Launched {
  std::string kernel; ///< "triax::(anonymous namespace)::rope_kernel<256, 8, triax::bf16>(...)"
  unsigned threads = 0;
  size_t shared = 0; ///< dynamic, in bytes
};
/// By all emulated devices of this process. With TRIAX_LAUNCHES=FILE in the environment, lines "SHARED THREADS KERNEL"
/// are added to the file when the process ends, for scripts/kernel_facts.
std::vector<Launched> launched();

struct Schedule {
  Order order = Order::forward;
  uint64_t seed = 0;
  uint64_t last_blocks = UINT64_MAX; ///< of each launch, no more than so many of the last blocks are run
  double patience = 30;              ///< seconds of the processor that a thread may go on without a barrier or the like
};
extern Schedule schedule;

} // namespace triax::emulation
