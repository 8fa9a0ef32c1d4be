// A stack of its own for each thread of the emulated block, and the switch between them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace triax::emulation {

/// What runs, or will: kept on its own stack while something else does.
struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr; ///< its lowest byte; of the launcher too, once a fiber was entered from it
  size_t size = 0;
  void* fake_stack = nullptr; ///< of the address sanitizer
};

/// Stacks are mapped once and used again.
void take_stack(Fiber& fiber);
void return_stack(Fiber& fiber);
/// Also for stacks that were left in the middle: nothing of them is poisoned any more.
void clean_stack(const Fiber& fiber);

/// The fiber's stack will begin with `entry`, which never returns and first of all calls `entered`. Stacks of different
/// `number` do not all start on the same sets of the cache.
void prepare(Fiber& fiber, unsigned number, void (*entry)());
/// `launcher` learns its stack if it is the one that was left.
void entered(Fiber& launcher);
/// Returns when something switches back to `from`; never where it ends.
void switch_fibers(Fiber& from, const Fiber& to, bool from_ends);

} // namespace triax::emulation
