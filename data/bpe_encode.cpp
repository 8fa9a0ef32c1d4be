#include "data/bpe_encode.h"
#include "kernels/check.h"
#include <algorithm>
#include <queue>
#include <tuple>

namespace triax {
namespace {

/// Below this length rescanning beats a heap.
constexpr size_t kShort = 24;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t spread(uint64_t key) {
  key *= 0x9e3779b97f4a7c15u;
  return key ^ key >> 32;
}

/// Finds the lowest rank, merges, starts again: quadratic, and the fastest for the usual piece of a few symbols.
void merge_short(const MergeTable& table, std::vector<int32_t>& symbols) {
  while (true) {
    const MergeTable::Entry* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const MergeTable::Entry* entry = table.find(symbols[i], symbols[i + 1]);
      if (entry && (!best || entry->rank < best->rank)) {
        best = entry;
        at = i;
      }
    }
    if (!best) return;
    symbols[at] = best->merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

/// The same order of merges by a heap of candidate pairs over a linked list. A candidate is stale when its symbols are
/// not what they were.
class LongMerge {
public:
  LongMerge(const MergeTable& table, std::vector<int32_t>& symbols) : table_(table), symbols_(symbols) {
    const size_t n = symbols.size();
    next_.resize(n);
    previous_.resize(n);
    for (size_t i = 0; i < n; ++i) {
      next_[i] = static_cast<int64_t>(i) + 1;
      previous_[i] = static_cast<int64_t>(i) - 1;
    }
    for (size_t i = 0; i + 1 < n; ++i) propose(static_cast<int64_t>(i));
  }

  void run() {
    const int64_t n = static_cast<int64_t>(symbols_.size());
    while (!candidates_.empty()) {
      const auto [rank, at, left, right] = candidates_.top();
      candidates_.pop();
      const int64_t after = symbols_[at] == left ? next_[at] : n;
      if (after >= n || symbols_[after] != right) continue;
      symbols_[at] = table_.find(left, right)->merged;
      symbols_[after] = kGone;
      next_[at] = next_[after];
      if (next_[at] < n) previous_[next_[at]] = at;
      if (previous_[at] >= 0) propose(previous_[at]);
      propose(at);
    }
    std::erase(symbols_, kGone);
  }

private:
  static constexpr int32_t kGone = -1;

  void propose(int64_t at) {
    const int64_t after = next_[at];
    if (after >= static_cast<int64_t>(symbols_.size())) return;
    const int32_t left = symbols_[at], right = symbols_[after];
    if (const auto* entry = table_.find(left, right)) candidates_.emplace(entry->rank, at, left, right);
  }

  using Candidate = std::tuple<int32_t, int64_t, int32_t, int32_t>; // rank, position, left, right
  const MergeTable& table_;
  std::vector<int32_t>& symbols_;
  std::vector<int64_t> next_, previous_;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates_;
};

} // namespace

MergeTable::MergeTable(const std::vector<Merge>& merges) {
  size_t size = 16;
  while (size < merges.size() * 2) size *= 2;
  slots_.assign(size, Entry{0, -1, -1});
  mask_ = size - 1;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t key = pair_key(merges[rank].left, merges[rank].right);
    uint64_t slot = spread(key) & mask_;
    while (slots_[slot].rank >= 0 && slots_[slot].pair != key) slot = (slot + 1) & mask_;
    // A pair named twice keeps the later rank, as it does in Hugging Face's map.
    slots_[slot] = {key, static_cast<int32_t>(rank), merges[rank].merged};
  }
}

const MergeTable::Entry* MergeTable::find(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  for (uint64_t slot = spread(key) & mask_;; slot = (slot + 1) & mask_) {
    const Entry& entry = slots_[slot];
    if (entry.rank < 0) return nullptr;
    if (entry.pair == key) return &entry;
  }
}

void merge_piece(const MergeTable& table, std::vector<int32_t>& symbols) {
  if (symbols.size() <= kShort)
    merge_short(table, symbols);
  else
    LongMerge(table, symbols).run();
}

} // namespace triax
