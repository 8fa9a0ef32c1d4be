// The block that runs: its threads, who waits where, and what the race detector must know of their order.
#pragma once
#include "kernels/emulated/emulation.h"
#include "kernels/emulated/fiber.h"
#include "kernels/emulated/runtime.h"
#include <array>
#include <string>
#include <vector>

namespace triax::emulation {

constexpr unsigned kWarp = 32;

/// An asynchronous copy that was not waited for.
struct Copy {
  void* to;
  const void* from;
  bool in_range;
  Place place;
  const void* caller;
};

/// How often each lane of the warp had come to a __syncwarp when it was last heard of. What a lane did before is
/// ordered before what the owner does now.
using Clocks = std::array<uint16_t, kWarp>;

enum class State : uint8_t { ready, at_warp, at_barrier, ended };

struct Thread {
  Fiber fiber;
  State state = State::ready;
  bool started = false;
  unsigned number = 0; ///< in the block
  uint3 index{};
  Clocks clocks{};
  // Where it waits, and for whom.
  const char* what = "";
  Place place;
  uint32_t mask = 0;
  Together together = nullptr;
  void* lane = nullptr;
  uint32_t arrived = 0, group_mask = 0; ///< kept by a group's lowest lane
  std::vector<Copy> copies;
  std::vector<size_t> groups; ///< ends of committed groups, in `copies`
};

/// Of all blocks and launches so far, from 1.
struct Counts {
  uint32_t blocks = 0;
  uint32_t first_of_launch = 1, first_of_operation = 1; ///< numbers of blocks
};
extern Counts counts;

struct Block {
  std::vector<Thread> threads;
  std::vector<uint32_t> ready, alive; ///< bits of each warp
  unsigned size = 0, living = 0, at_barrier = 0;
  uint16_t barriers = 0; ///< passed so far
  Thread* current = nullptr;
  uint64_t turns = 0;      ///< how often threads took turns, in all launches
  Thread* ended = nullptr; ///< whose stack is to be returned
  Fiber launcher;
  Kernel kernel{};
  uint3 dim{};
  unsigned char* shared = nullptr;
  size_t shared_bytes = 0, shared_capacity = 0;
  std::string failure; ///< ends the launch
};
extern Block block;

inline uint32_t lanes_of_warp(unsigned warp) {
  const unsigned left = block.size - warp * kWarp;
  return left >= kWarp ? ~0u : (1u << left) - 1u;
}

/// Ends a thread, and with it the launch.
struct Stopped {
  std::string text;
};

/// Runs others until the current thread is ready again.
void run_others();

/// While it lives, a thread that keeps its turn for `schedule.patience` ends the process (watch.cpp).
class Watch {
public:
  Watch();
  ~Watch();
};

// ---- what the operation in progress declares (declared.cpp) ----

bool is_declared();
extern Moved moved_bytes; ///< by the operation in progress
/// May the bytes be touched so?
bool allowed(uintptr_t at, size_t bytes, Touch how);
std::string describe_undeclared(uintptr_t at, size_t bytes, Touch how); ///< where they may not
/// Must a read follow a write of the same operation?
bool written_first(uintptr_t at);

// ---- reports (report.cpp) ----

/// Remembers the launch in progress, for launched().
void note_launch();

/// "kernel K, block (0, 0, 0), thread (1, 0, 0)".
std::string where();
std::string name_of_kernel();
std::vector<std::string> names_of_functions(const std::vector<const void*>& functions); ///< whole, as C++ has them
std::string name_of(const Place& place);                                                ///< "kernels/norm.cu:19"
/// "kernels/simt.h:66 (load) < kernels/norm.cu:19": the line, and those that it was inlined into.
std::string source_of(const void* caller);
constexpr const char* kUnknownLine = "an unknown line";

} // namespace triax::emulation
