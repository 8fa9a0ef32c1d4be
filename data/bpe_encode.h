// Byte-pair merging of one piece, in time n log n.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace triax {

/// Tokens `left` and `right`, adjacent, become `merged`. A merge's rank is its index in the list; low ranks go first.
struct Merge {
  int32_t left, right, merged;
  bool operator==(const Merge&) const = default;
};

/// Looks up a pair's merge: open addressing, one probe mostly.
class MergeTable {
public:
  explicit MergeTable(const std::vector<Merge>& merges);
  struct Entry {
    uint64_t pair;
    int32_t rank; ///< -1: the slot is empty
    int32_t merged;
  };
  /// Null when the pair has no merge.
  const Entry* find(int32_t left, int32_t right) const;

private:
  std::vector<Entry> slots_;
  uint64_t mask_ = 0;
};

/// Applies merges to `symbols` until none applies: always the lowest rank, of equal ranks the leftmost
/// (so `aaa` with the merge a a becomes `aa a`).
void merge_piece(const MergeTable& table, std::vector<int32_t>& symbols);

} // namespace triax
