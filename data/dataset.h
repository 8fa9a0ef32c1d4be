// Batches as a pure function of data set, seed and sample numbers.
#pragma once
#include "data/shard.h"
#include "data/tokenizer.h"
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace triax {

/// `count` samples of `sequence` positions. Arrays are [count, T], row-major.
struct Batch {
  int64_t first_sample = 0, count = 0, sequence = 0;
  int64_t counted = 0; ///< labels that are not -1
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;         ///< the next token; -1: not counted
  std::vector<int32_t> document_start; ///< first position in the row that a position may attend to
  std::vector<int32_t> token_order;    ///< positions 0..count*T-1 of the batch, stably sorted by token id
};

struct DatasetOptions {
  std::string folder;              ///< made by `prepare`; or empty, and
  std::vector<std::string> shards; ///< shard files, in order
  std::string split = "train";     ///< or "val"; of a folder
  int64_t sequence = 0;            ///< T
  uint64_t seed = 0;
  bool shuffle = true;
  int64_t vocabulary = 0; ///< of the model: data of a larger one, and larger ids, are refused
};

/// A token stream - all shards one after another - cut into windows of T inputs and the token that follows, stride T.
/// Of n tokens, each of the n-1 pairs (token, next token) is in exactly one of the ceil((n-1)/T) samples of an epoch;
/// the last sample is filled up with token 0 and label -1. A document's last token has the next document's first as its
/// label, and that label counts: it is how the model learns what texts start with. Cheap to copy, usable from several
/// threads.
class Dataset {
public:
  /// Throws before anything is trained on: fewer than T+1 tokens (with folder or file, found, needed), a vocabulary
  /// larger than the model's, shards of different tokenizers, a shard that is missing, damaged or not the one in
  /// `dataset.json`.
  static Dataset open(const DatasetOptions& options);

  int64_t samples_per_epoch() const;
  int64_t tokens() const;
  int64_t documents() const;
  int64_t text_bytes() const; ///< 0 where a shard does not say
  int64_t sequence() const;
  /// 0 where the shards do not say.
  uint64_t tokenizer_hash() const;
  int64_t vocabulary() const; ///< of the data; 0 where the shards do not say

  /// Samples [first_sample, first_sample + count), over as many epochs as they reach. Sample s is window
  /// permuted(s mod samples_per_epoch) under a key of seed and epoch s / samples_per_epoch; without shuffle the window
  /// s mod samples_per_epoch.
  Batch batch(int64_t first_sample, int64_t count) const;
  /// The same for a sum over samples [0, samples) in batches of one size: of samples from `samples` on, every label is
  /// -1 and none is counted, so each sample is counted once although the last batch reaches beyond them.
  Batch batch_once(int64_t first_sample, int64_t count, int64_t samples) const;
  /// First token, in the stream, of sample `sample`.
  int64_t window_start(int64_t sample) const;

private:
  struct State;
  Dataset() = default;
  std::shared_ptr<const State> state_;
};

/// The rows of a batch at these positions of every sequence, in their order. The document starts are still those of
/// positions in the whole sequence, and with `all_starts` still those of all positions.
Batch rows_at(const Batch& batch, const std::vector<int32_t>& positions, bool all_starts);

/// Bytes of text that the counted labels stand for: bits per byte = nats / ln 2 / this.
int64_t label_bytes(const Batch& batch, const Tokenizer& tokenizer);

} // namespace triax
