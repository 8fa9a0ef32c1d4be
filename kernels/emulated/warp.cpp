// What a warp does together, and asynchronous copies.
#include "kernels/check.h"
#include "kernels/emulated/block.h"
#include <algorithm>
#include <bit>
#include <cstring>

namespace triax::emulation {
namespace {

/// Calls f(lane) for each lane of the mask.
template <class F> void each_lane(uint32_t mask, const F& f) {
  for (; mask; mask &= mask - 1) f(std::countr_zero(mask));
}

/// What is done in its scope is done by this lane of the current thread's warp.
class As {
public:
  explicit As(int lane) : before_(block.current) {
    block.current = &block.threads[before_->number / kWarp * kWarp + unsigned(lane)];
  }
  ~As() { block.current = before_; }
  As(const As&) = delete;
  As& operator=(const As&) = delete;

private:
  Thread* before_;
};

/// Each lane of the mask has heard of all that the others knew.
void join_clocks(Thread* warp, uint32_t mask) {
  Clocks all{};
  each_lane(mask, [&](int lane) {
    for (unsigned l = 0; l < kWarp; ++l) all[l] = std::max(all[l], warp[lane].clocks[l]);
  });
  each_lane(mask, [&](int lane) {
    warp[lane].clocks = all;
    if (++warp[lane].clocks[size_t(lane)] == 0)
      stop("more than 65535 __syncwarp in a block are too many for the emulation", warp[lane].place);
  });
}

float float_of_bf16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

void load_matrices(void** lanes, uint32_t mask, bool transposed) {
  const Place at = block.current->place;
  if (mask != ~0u) stop("ldmatrix needs a whole warp", at);
  for (int q = 0; q < 4; ++q) {
    uint16_t matrix[8][8];
    for (int row = 0; row < 8; ++row) {
      const As giver(q * 8 + row);
      const auto& lane = *static_cast<LoadMatrix*>(lanes[q * 8 + row]);
      if (reinterpret_cast<uintptr_t>(lane.row) % 16) stop("ldmatrix: a row is not aligned to 16 bytes", at);
      check_bytes(lane.row, 16, "ldmatrix", at);
      touch(lane.row, 16, Touch::read, lane.caller);
      std::memcpy(matrix[row], lane.row, 16);
    }
    for (int l = 0; l < 32; ++l) {
      const int row = l / 4, column = l % 4 * 2;
      const uint32_t low = transposed ? matrix[column][row] : matrix[row][column],
                     high = transposed ? matrix[column + 1][row] : matrix[row][column + 1];
      static_cast<LoadMatrix*>(lanes[l])->fragments[q] = low | high << 16;
    }
  }
}

} // namespace

void warp_together(uint32_t mask, void* lane, Together together, Orders orders, const char* what, Place at) {
  Thread& own = *block.current;
  const unsigned warp = own.number / kWarp, place = own.number % kWarp;
  const uint32_t need = mask & lanes_of_warp(warp);
  own.state = State::at_warp;
  own.what = what;
  own.place = at;
  own.mask = mask;
  own.together = together;
  own.lane = lane;
  if (!(mask >> place & 1u)) stop(concat(what, ": the calling lane is not in its mask"), at);
  if (need & ~block.alive[warp]) stop(concat(what, ": the mask names a lane that has ended"), at);
  Thread* lanes = &block.threads[warp * kWarp];
  block.ready[warp] &= ~(1u << place);
  Thread& lead = lanes[std::countr_zero(need)];
  if (lead.arrived == 0) lead.group_mask = mask;
  if (lead.group_mask != mask) stop(concat(what, ": lanes of a warp disagree about the mask"), at);
  lead.arrived |= 1u << place;
  if (lead.arrived != need) return run_others();
  lead.arrived = 0;
  void* given[kWarp] = {};
  each_lane(need, [&](int l) {
    if (lanes[l].together != together) stop(concat(what, ", and other lanes of the mask are at ", lanes[l].what), at);
    given[l] = lanes[l].lane;
  });
  together(given, need);
  each_lane(need, [&](int l) { lanes[l].state = State::ready; });
  block.ready[warp] |= need;
  if (orders == Orders::memory) join_clocks(lanes, need);
  if (schedule.order == Order::shuffled) run_others();
}

void synchronize_together(void**, uint32_t) {}

void shuffle_together(void** lanes, uint32_t mask) {
  each_lane(mask, [&](int lane) {
    const As reader(lane);
    auto& s = *static_cast<Shuffle*>(lanes[lane]);
    if (!(mask >> s.from & 1u))
      stop(concat(block.current->what, ": lane ", lane, " reads lane ", s.from, ", which is not in the mask"),
           block.current->place);
    s.out = static_cast<Shuffle*>(lanes[s.from])->in;
  });
}

void vote_together(void** lanes, uint32_t mask) {
  uint32_t all = 0;
  each_lane(mask, [&](int lane) { all |= static_cast<Vote*>(lanes[lane])->in << lane; });
  each_lane(mask, [&](int lane) { static_cast<Vote*>(lanes[lane])->out = all; });
}

void load_matrix_together(void** lanes, uint32_t mask) { load_matrices(lanes, mask, false); }
void load_matrix_transposed_together(void** lanes, uint32_t mask) { load_matrices(lanes, mask, true); }

void multiply_add_together(void** lanes, uint32_t mask) {
  if (mask != ~0u) stop("mma.sync needs a whole warp", block.current->place);
  float a[16][16], b[16][8], c[16][8];
  for (int l = 0; l < 32; ++l) {
    const auto& m = *static_cast<MultiplyAdd*>(lanes[l]);
    const int g = l / 4, t = l % 4 * 2;
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 2; ++k) {
        a[g + i % 2 * 8][t + i / 2 * 8 + k] = float_of_bf16(m.a[i] >> 16 * k & 0xffff);
        c[g + i / 2 * 8][t + i % 2] = m.c[i];
        if (i < 2) b[t + i * 8 + k][g] = float_of_bf16(m.b[i] >> 16 * k & 0xffff);
      }
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < 4; ++i) static_cast<MultiplyAdd*>(lanes[l])->c[i] = c[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
}

void copy_later(void* shared, const void* global, bool in_range, Place at, const void* caller) {
  if (reinterpret_cast<uintptr_t>(shared) % 16) stop("cp.async: the shared address is not aligned to 16 bytes", at);
  if (reinterpret_cast<uintptr_t>(global) % 16) stop("cp.async: the global address is not aligned to 16 bytes", at);
  touch(shared, 16, Touch::begin_copy, caller);
  block.current->copies.push_back({shared, global, in_range, at, caller});
}

void commit_copies() { block.current->groups.push_back(block.current->copies.size()); }

void wait_for_copies(size_t groups_still_open) {
  Thread& own = *block.current;
  if (own.groups.size() <= groups_still_open) return;
  const size_t closed = own.groups.size() - groups_still_open, done = own.groups[closed - 1];
  for (size_t i = 0; i < done; ++i) {
    const Copy& c = own.copies[i];
    check_bytes(c.to, 16, "cp.async (shared side)", c.place);
    touch(c.to, 16, Touch::write, c.caller);
    if (!c.in_range) {
      std::memset(c.to, 0, 16);
      continue;
    }
    check_bytes(c.from, 16, "cp.async (global side)", c.place);
    touch(c.from, 16, Touch::read, c.caller);
    std::memcpy(c.to, c.from, 16);
  }
  own.copies.erase(own.copies.begin(), own.copies.begin() + ptrdiff_t(done));
  own.groups.erase(own.groups.begin(), own.groups.begin() + ptrdiff_t(closed));
  for (size_t& end : own.groups) end -= done;
}

} // namespace triax::emulation
