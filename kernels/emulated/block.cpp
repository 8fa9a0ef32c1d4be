// The threads of a block take turns: each runs until it waits. A thread that finds nobody to hand over to has found a
// deadlock.
#include "kernels/emulated/block.h"
#include "kernels/check.h"
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <random>
#if defined(TRIAX_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#endif

namespace triax::emulation {

Registers registers;
Block block;
Counts counts;
Schedule schedule;

namespace {

// As CUDA's programming guide has them for all architectures in use.
constexpr unsigned kMostThreads = 1024, kMostRows = 65535;
constexpr size_t kMostShared = 227 * 1024;

std::minstd_rand random_turn;

unsigned warp_of(const Thread& t) { return t.number / kWarp; }
uint32_t bit_of(const Thread& t) { return 1u << t.number % kWarp; }

/// The thread whose turn it is after the current one; null where none is ready.
Thread* next_in_turn() {
  const unsigned warps = unsigned(block.ready.size()), from = warp_of(*block.current);
  const bool reverse = schedule.order == Order::reverse, shuffled = schedule.order == Order::shuffled;
  const unsigned start = shuffled ? unsigned(random_turn()) % warps : from;
  for (unsigned k = 0; k < warps; ++k) {
    const unsigned warp = (start + (reverse ? warps - k : k)) % warps;
    const uint32_t ready = block.ready[warp], below = bit_of(*block.current) - 1u, own = bit_of(*block.current);
    if (!ready) continue;
    uint32_t pick = ready;
    if (shuffled) { // any: drop a random number of the lowest
      for (unsigned drop = unsigned(random_turn()) % unsigned(std::popcount(ready)); drop > 0; --drop) pick &= pick - 1;
    } else if (warp == from) { // the next lane, or the first
      const uint32_t later = reverse ? ready & below : ready & ~(below | own);
      pick = later ? later : ready;
    }
    const int lane = reverse ? 31 - std::countl_zero(pick) : std::countr_zero(pick);
    return &block.threads[warp * kWarp + unsigned(lane)];
  }
  return nullptr;
}

void return_stack_of_ended() {
  if (block.ended && !block.failure.empty()) clean_stack(block.ended->fiber);
  if (block.ended) return_stack(block.ended->fiber);
  block.ended = nullptr;
}

/// The running thread, from its first instruction to its last.
void run_kernel() {
  block.kernel.run(block.kernel.call);
  Thread& own = *block.current;
  own.state = State::ended;
  block.ready[warp_of(own)] &= ~bit_of(own);
  block.alive[warp_of(own)] &= ~bit_of(own);
  --block.living;
  if (!own.copies.empty()) stop("the thread ends before its cp.async copies were waited for", own.copies.back().place);
  if (block.at_barrier) stop("a thread has ended, and others wait for it at __syncthreads", {});
  if (block.living && !next_in_turn()) stop("no thread of the block can go on", {});
}

void run_thread() {
  entered(block.launcher);
  return_stack_of_ended();
  Thread& own = *block.current;
  try {
    run_kernel();
  } catch (const Stopped& stopped) { // the only way out of a kernel before its end
    block.failure = stopped.text;
    block.current = &own;
  }
  block.ended = &own;
  run_others();
  __builtin_unreachable();
}

void make_current(Thread& t) {
  if (!t.started) {
    take_stack(t.fiber);
    prepare(t.fiber, t.number, run_thread);
    t.started = true;
  }
  block.current = &t;
  ++block.turns;
  registers.threadIdx = t.index;
}

/// How many wait at the same place, and who is the first of them.
struct Group {
  const Thread* first;
  unsigned count;
};
std::string describe_groups() {
  std::vector<Group> groups;
  for (unsigned n = 0; n < block.size; ++n) {
    const Thread& t = block.threads[n];
    const auto same = [&](const Group& g) {
      const Thread& f = *g.first;
      return f.state == t.state && (t.state == State::ended || t.state == State::ready ||
                                    (!strcmp(f.place.file, t.place.file) && f.place.line == t.place.line &&
                                     (t.state != State::at_warp || f.mask == t.mask)));
    };
    const auto at = std::find_if(groups.begin(), groups.end(), same);
    if (at == groups.end())
      groups.push_back({&t, 1});
    else
      ++at->count;
  }
  std::string text;
  for (const Group& g : groups) {
    const Thread& t = *g.first;
    text += concat("\n  ", g.count, g.count == 1 ? " thread" : " threads", ", the first of them ", t.number);
    if (t.state == State::ended) text += ": ended";
    if (t.state == State::ready) text += ": could run";
    if (t.state == State::at_warp || t.state == State::at_barrier)
      text += concat(": at ", t.what, ", ", name_of(t.place));
    if (t.state == State::at_warp) text += concat(", mask 0x", std::hex, t.mask);
  }
  return text;
}

void begin_block(const dim3& dim) {
  for (unsigned n = 0; n < block.size; ++n) {
    Thread& t = block.threads[n];
    t.fiber.fake_stack = nullptr;
    t.state = State::ready;
    t.started = false;
    t.number = n;
    t.index = {n % dim.x, n / dim.x % dim.y, n / dim.x / dim.y};
    t.clocks = {};
    t.clocks[n % kWarp] = 1;
    t.arrived = 0;
    t.copies.clear();
    t.groups.clear();
  }
  for (unsigned warp = 0; warp < block.ready.size(); ++warp)
    block.ready[warp] = block.alive[warp] = lanes_of_warp(warp);
  block.living = block.size;
  block.at_barrier = 0;
  block.barriers = 0;
  if (block.shared_bytes) std::memset(block.shared, 0xFF, block.shared_bytes); // no number
  ++counts.blocks;
}

void run_block(const dim3& dim) {
  begin_block(dim);
  const unsigned shuffled = unsigned(random_turn()) % block.size;
  make_current(block.threads[schedule.order == Order::forward   ? 0
                             : schedule.order == Order::reverse ? block.size - 1
                                                                : shuffled]);
  switch_fibers(block.launcher, block.current->fiber, false);
  return_stack_of_ended();
  block.current = nullptr;
}

/// After a failure: the stacks of the threads that were left in the middle can be used again.
void abandon_block() {
  for (unsigned n = 0; n < block.size; ++n)
    if (Fiber& fiber = block.threads[n].fiber; fiber.stack) {
      clean_stack(fiber);
      return_stack(fiber);
    }
}

void take_shared(size_t bytes) {
  constexpr size_t kPage = 4096;
#if defined(TRIAX_ADDRESS_SANITIZER)
  if (block.shared) __asan_unpoison_memory_region(block.shared, block.shared_capacity);
#endif
  if (block.shared_capacity < bytes + kPage) {
    std::free(block.shared);
    block.shared_capacity = (bytes + 2 * kPage) / kPage * kPage;
    block.shared = static_cast<unsigned char*>(std::aligned_alloc(kPage, block.shared_capacity));
  }
  block.shared_bytes = bytes;
#if defined(TRIAX_ADDRESS_SANITIZER)
  __asan_poison_memory_region(block.shared + bytes, block.shared_capacity - bytes);
#endif
}

/// The n-th block to run.
uint64_t block_in_turn(uint64_t n, uint64_t blocks) {
  if (schedule.order == Order::forward) return n;
  if (schedule.order == Order::reverse) return blocks - 1 - n;
  uint64_t step = (schedule.seed * 2 + 1) * 0x9E3779B1u % blocks; // any that shares no factor visits all
  while (std::gcd(step, blocks) != 1) ++step;
  return uint64_t((unsigned __int128)(n)*step % blocks);
}

} // namespace

void run_others() {
  Thread& own = *block.current;
  const bool ends = block.ended == &own;
  Thread* next = block.failure.empty() ? next_in_turn() : nullptr;
  if (!next && !ends) stop("no thread of the block can go on", {});
  if (next == &own) return;
  if (next) make_current(*next);
  switch_fibers(own.fiber, next ? next->fiber : block.launcher, ends);
  return_stack_of_ended();
}

void block_barrier(Place at) {
  Thread& own = *block.current;
  own.state = State::at_barrier;
  own.what = "__syncthreads";
  own.place = at;
  block.ready[warp_of(own)] &= ~bit_of(own);
  if (++block.at_barrier < block.living) return run_others();
  if (block.living < block.size) stop("__syncthreads, and some threads of the block have ended", at);
  for (unsigned n = 0; n < block.size; ++n)
    if (const Place& p = block.threads[n].place;
        p.line != at.line || (p.file != at.file && strcmp(p.file, at.file) != 0))
      stop("threads of the block are at different __syncthreads", at);
  if (++block.barriers == 0) stop("more than 65535 barriers in a block are too many for the emulation", at);
  block.at_barrier = 0;
  block.ready = block.alive;
  for (unsigned n = 0; n < block.size; ++n) block.threads[n].state = State::ready;
  if (schedule.order == Order::shuffled) run_others(); // it need not be the last that goes on
}

void stop(const std::string& what, Place at) {
  const std::string place = at.line ? concat(" at ", name_of(at)) : std::string();
  if (!block.current) fail(concat("emulation: ", what, place));
  throw Stopped{concat("emulation: ", what, place, "\n  ", where(), describe_groups())};
}

void check_bytes([[maybe_unused]] const void* at, [[maybe_unused]] size_t bytes, [[maybe_unused]] const char* what,
                 [[maybe_unused]] Place place) {
#if defined(TRIAX_ADDRESS_SANITIZER)
  if (const void* bad = __asan_region_is_poisoned(const_cast<void*>(at), bytes))
    stop(concat(what, " touches ", bad, ", which is out of bounds or was given back"), place);
#endif
}

unsigned char* dynamic_shared_memory() { return block.shared; }

void run_grid(dim3 grid, dim3 dim, size_t shared, const Kernel& kernel) {
  ENSURE(!block.current, "emulation: a kernel launches a kernel");
  block.kernel = kernel;
  const uint64_t size = uint64_t(dim.x) * dim.y * dim.z, blocks = uint64_t(grid.x) * grid.y * grid.z;
  DEMAND(size > 0 && size <= kMostThreads && blocks > 0 && grid.x <= INT32_MAX && grid.y <= kMostRows &&
             grid.z <= kMostRows && shared <= kMostShared,
         "emulation: ", name_of_kernel(), ": a grid of ", grid.x, " x ", grid.y, " x ", grid.z, " blocks of ", size,
         " threads with ", shared, " bytes of shared memory is more, or less, than a GPU takes");
  block.size = unsigned(size);
  block.dim = {dim.x, dim.y, dim.z};
  block.threads.resize(std::max<size_t>(block.threads.size(), size));
  block.ready.assign((size + kWarp - 1) / kWarp, 0);
  block.alive = block.ready;
  block.launcher = {};
  block.failure.clear();
  take_shared(shared);
  note_launch();
  random_turn.seed(unsigned(schedule.seed) + 1);
  registers.blockDim = block.dim;
  registers.gridDim = {grid.x, grid.y, grid.z};
  counts.first_of_launch = counts.blocks + 1;
  if (!is_declared()) counts.first_of_operation = counts.first_of_launch;
  const Watch watch;
  const uint64_t some = std::min(blocks, schedule.last_blocks);
  for (uint64_t n = 0; n < some && block.failure.empty(); ++n) {
    const uint64_t b = blocks - some + block_in_turn(n, some);
    registers.blockIdx = {unsigned(b % grid.x), unsigned(b / grid.x % grid.y), unsigned(b / grid.x / grid.y)};
    run_block(dim);
  }
  if (!block.failure.empty()) {
    abandon_block();
    fail(block.failure);
  }
}

} // namespace triax::emulation
