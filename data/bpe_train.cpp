#include "data/bpe_train.h"
#include "kernels/check.h"
#include <algorithm>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace triax {
namespace {

/// A distinct piece: `size` symbols in the pool at `first`, seen `count` times.
struct Word {
  int64_t first, size, count;
};

/// All distinct pieces of the documents, in the order of their bytes.
std::vector<std::pair<std::string, int64_t>> count_pieces(const DocumentSource& next,
                                                          const std::vector<Split>& splits) {
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> counts;
  PreTokenizer pre_tokenizer(splits);
  std::string_view document;
  while (next(document))
    pre_tokenizer.split(document, [&](std::string_view piece) {
      const auto found = counts.find(piece);
      if (found == counts.end())
        counts.emplace(piece, 1);
      else
        ++found->second;
    });
  std::vector<std::pair<std::string, int64_t>> sorted(counts.begin(), counts.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

class Trainer {
public:
  Trainer(const std::vector<std::pair<std::string, int64_t>>& pieces, const BpeTrainOptions& options)
      : options_(options) {
    for (int byte = 0; byte < 256; ++byte) add_token(std::string(1, static_cast<char>(byte)));
    for (const auto& [piece, count] : pieces) {
      words_.push_back({static_cast<int64_t>(symbols_.size()), static_cast<int64_t>(piece.size()), count});
      for (char c : piece) symbols_.push_back(static_cast<unsigned char>(c));
    }
  }

  TokenizerParts run() {
    const int64_t special = options_.end_of_text.empty() ? 0 : 1;
    for (size_t w = 0; w < words_.size(); ++w)
      for (int64_t i = 0; i + 1 < words_[w].size; ++i) change(w, at(w, i), at(w, i + 1), words_[w].count);
    propose_touched();
    while (static_cast<int64_t>(parts_.tokens.size()) + special < options_.vocab_size && merge_best()) {
    }
    if (special) {
      const int32_t id = static_cast<int32_t>(parts_.tokens.size());
      parts_.tokens.push_back(options_.end_of_text);
      parts_.added.push_back({id, options_.end_of_text, true});
      parts_.end_of_text = id;
    }
    parts_.splits = options_.splits;
    return std::move(parts_);
  }

private:
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words; ///< that hold it or once did
    bool touched = false, merged = false;
  };
  using Candidate = std::tuple<int64_t, int32_t, int32_t>; // count, left, right: the largest goes first

  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  int32_t& at(size_t word, int64_t i) { return symbols_[static_cast<size_t>(words_[word].first + i)]; }

  int32_t add_token(const std::string& bytes) {
    const auto [found, fresh] = ids_.emplace(bytes, static_cast<int32_t>(parts_.tokens.size()));
    if (fresh) parts_.tokens.push_back(bytes);
    return found->second;
  }

  void change(size_t word, int32_t left, int32_t right, int64_t by) {
    Pair& pair = pairs_[key(left, right)];
    pair.count += by;
    if (by < 0) return;
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(static_cast<uint32_t>(word));
    if (!pair.touched) touched_.push_back(key(left, right));
    pair.touched = true;
  }

  /// Enters the pairs whose counts grew with their counts of now; those that shrank are corrected when they surface.
  void propose_touched() {
    for (uint64_t k : touched_) {
      Pair& pair = pairs_[k];
      pair.touched = false;
      if (pair.count >= options_.min_count)
        candidates_.emplace(pair.count, static_cast<int32_t>(k >> 32), static_cast<int32_t>(k));
    }
    touched_.clear();
  }

  /// One round. False when no pair is frequent enough.
  bool merge_best() {
    while (!candidates_.empty()) {
      const auto [count, left, right] = candidates_.top();
      candidates_.pop();
      const auto found = pairs_.find(key(left, right));
      if (found == pairs_.end()) continue;
      const int64_t now = found->second.count;
      if (now != count) {
        if (now >= options_.min_count && now < count) candidates_.emplace(now, left, right);
        continue;
      }
      const std::string bytes = parts_.tokens[left] + parts_.tokens[right];
      if (bytes == options_.end_of_text) continue;
      const std::vector<uint32_t> words = std::move(found->second.words);
      const int32_t merged = add_token(bytes);
      if (!std::exchange(found->second.merged, true)) parts_.merges.push_back({left, right, merged});
      for (uint32_t word : words) merge_word(word, left, right, merged);
      propose_touched();
      return true;
    }
    return false;
  }

  /// Merges from left to right; each single merge takes away three pairs and adds two, so counts stay exact.
  void merge_word(size_t word, int32_t left, int32_t right, int32_t merged) {
    Word& w = words_[word];
    int64_t out = 0;
    for (int64_t i = 0; i < w.size; ++i) {
      if (i + 1 >= w.size || at(word, i) != left || at(word, i + 1) != right) {
        at(word, out++) = at(word, i);
        continue;
      }
      change(word, left, right, -w.count);
      if (out > 0) {
        change(word, at(word, out - 1), left, -w.count);
        change(word, at(word, out - 1), merged, w.count);
      }
      if (i + 2 < w.size) {
        change(word, right, at(word, i + 2), -w.count);
        change(word, merged, at(word, i + 2), w.count);
      }
      at(word, out++) = merged;
      ++i;
    }
    w.size = out;
  }

  const BpeTrainOptions& options_;
  TokenizerParts parts_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<int32_t> symbols_;
  std::vector<Word> words_;
  std::unordered_map<uint64_t, Pair> pairs_;
  std::vector<uint64_t> touched_;
  std::priority_queue<Candidate> candidates_;
};

} // namespace

Tokenizer train_bpe(const DocumentSource& next, const BpeTrainOptions& options) {
  const int64_t least = 256 + (options.end_of_text.empty() ? 0 : 1), most = 1 << 24;
  DEMAND(options.vocab_size >= least && options.vocab_size <= most, "a byte-level vocabulary has at least ", least,
         " and at most ", most, " entries; ", options.vocab_size, " were asked for");
  DEMAND(options.min_count >= 1, "min_count is ", options.min_count, "; it must be at least 1");
  const auto pieces = count_pieces(next, options.splits);
  DEMAND(!pieces.empty(), "there is no text to train a tokenizer on");
  return Tokenizer(Trainer(pieces, options).run());
}

} // namespace triax
