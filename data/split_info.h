// What a data folder says of a split, without opening its shards.
#pragma once
#include <cstdint>
#include <string>

namespace triax {

struct SplitInfo {
  int64_t tokens = 0;   ///< 0 where the split is empty
  std::string identity; ///< the content hashes of its shards, in order: equal exactly where the tokens are
};
/// Throws with file and key where `dataset.json` is missing or damaged.
SplitInfo split_info(const std::string& folder, const std::string& split);

} // namespace triax
