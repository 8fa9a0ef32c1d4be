// Learns a byte-pair vocabulary (Sennrich et al. 2016, over bytes).
#pragma once
#include "data/tokenizer.h"
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace triax {

/// Gives the next document and returns true, or returns false at the end. The view holds until the next call.
using DocumentSource = std::function<bool(std::string_view& document)>;

struct BpeTrainOptions {
  int64_t vocab_size = 8192; ///< bytes, merged tokens and the end-of-text token together
  std::vector<Split> splits = {{kGpt2Pattern, false}};
  std::string end_of_text = "<|endoftext|>"; ///< the last id; empty: none
  int64_t min_count = 2;                     ///< a pair seen less often is not merged
};

/// Ids 0..255 are the bytes, then one id a merge in the order learned, then end of text.
/// Each round merges the pair of adjacent tokens with the highest count inside pieces; of equal counts the pair with
/// the highest left id, then the highest right id. Counts are of positions: `aaa` holds the pair a a twice. Merges that
/// give the bytes of a known token give that token. The result depends on the documents alone, not on their order.
/// Stops early, with a smaller vocabulary, when no pair is left that was seen `min_count` times.
Tokenizer train_bpe(const DocumentSource& next, const BpeTrainOptions& options);

} // namespace triax
