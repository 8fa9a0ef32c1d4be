// What the emulation's header (simt_emulated.h) asks of its runtime. Every thread of a block is a fiber of the one
// thread that launches; blocks run one after another. Nothing here is compiled with sanitizers: fibers may be left
// without returning. Errors end the launch and are thrown by it.
#pragma once
#include "kernels/simt_words.h"
#include <cstddef>
#include <string>

namespace triax::emulation {

/// The words that a kernel reads; of the running thread.
struct Registers {
  uint3 threadIdx, blockIdx, blockDim, gridDim;
};
extern Registers registers;

/// The place of a call in the source.
struct Place {
  const char* file = "";
  int line = 0;
};

/// A kernel's launch: `run(call)` runs it for the thread that the registers name.
struct Kernel {
  void (*run)(const void* call);
  const void* call; ///< with the arguments, of `size` bytes, which the kernel may read
  size_t size;
  const void* function; ///< names it
  bool races;           ///< compiled for the race detector
};
/// Runs all threads of all blocks. Throws with kernel, block, thread and place at the first error, and at the end with
/// all races that were seen.
void run_grid(dim3 grid, dim3 block, size_t shared, const Kernel& kernel);
unsigned char* dynamic_shared_memory();

void block_barrier(Place at);

/// What a warp does together, done once, by the last lane of `mask` to come: `lanes` holds what each lane gave.
using Together = void (*)(void** lanes, uint32_t mask);
enum class Orders : bool { nothing, memory };
void warp_together(uint32_t mask, void* lane, Together together, Orders orders, const char* what, Place at);

struct Shuffle {
  uint64_t in, out;
  int from;
};
struct Vote {
  uint32_t in, out;
};
struct LoadMatrix {
  uint32_t* fragments; ///< [4]
  const void* row;
  const void* caller;
};
struct MultiplyAdd {
  float* c;          ///< [4]
  const uint32_t *a, ///< [4]
      *b;            ///< [2]
};
void synchronize_together(void** lanes, uint32_t mask);
void shuffle_together(void** lanes, uint32_t mask);
void vote_together(void** lanes, uint32_t mask);
void load_matrix_together(void** lanes, uint32_t mask);
void load_matrix_transposed_together(void** lanes, uint32_t mask);
void multiply_add_together(void** lanes, uint32_t mask);

/// Copies 16 bytes, or zeros, when they are waited for: as late as a GPU may.
void copy_later(void* shared, const void* global, bool in_range, Place at, const void* caller);
void commit_copies();
void wait_for_copies(size_t groups_still_open);

/// `begin_copy`: from now on the bytes may be overwritten, and until the write that ends it nobody may read them.
enum class Touch : uint8_t { read, write, atomic, begin_copy };
/// Tells the race detector, where the unit is compiled for it, of an access that its compiler does not.
void touch(const void* at, size_t bytes, Touch how, const void* caller);
/// The same of an access that must be aligned to its size.
void touch_aligned(const void* at, size_t bytes, Touch how, const void* caller);
/// Ends the launch where the bytes are not to be touched, as far as this can be known.
void check_bytes(const void* at, size_t bytes, const char* what, Place place);
/// Ends the launch with an error at a place of the running thread.
[[noreturn]] void stop(const std::string& what, Place at);

} // namespace triax::emulation
