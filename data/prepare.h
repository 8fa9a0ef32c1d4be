// Text to a data folder that training reads.
#pragma once
#include "data/documents.h"
#include "data/shard.h"
#include "data/tokenizer.h"
#include <cstdint>
#include <string>
#include <vector>

namespace triax {

struct PrepareOptions {
  DocumentOptions documents;
  std::string output;             ///< the folder to make; must not exist
  double held_out = 0.05;         ///< share of documents in the `val` split, in [0, 1)
  uint64_t seed = 0;              ///< of the split
  int64_t shard_tokens = 1 << 28; ///< a shard is closed before the document that would pass this; documents stay whole
  bool begin_of_text = false;     ///< each document starts with the begin-of-text token
  bool end_of_text = true;        ///< each document ends in exactly one end-of-text token
  bool parse_added = false;       ///< texts of added tokens inside documents become those tokens
};

struct SplitSummary {
  std::vector<std::string> files; ///< names inside the folder
  std::vector<ShardHeader> shards;
  int64_t tokens = 0, documents = 0, text_bytes = 0;
};

struct PrepareSummary {
  DocumentCounts documents;
  SplitSummary train, val;
  /// A few lines for people: documents read, empty, blank, skipped by reason; tokens and bytes of each split.
  std::string text() const;
};

/// Writes `output`: train_*.shard, val_*.shard, dataset.json, tokenizer.json, tokenizer_config.json. Written aside and
/// published by one rename: after a failure nothing is left. Refuses a corpus without a document for `train`.
PrepareSummary prepare(const PrepareOptions& options, const Tokenizer& tokenizer);

} // namespace triax
