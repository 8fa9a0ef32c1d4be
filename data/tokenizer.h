// Byte-level byte-pair tokenizer: text to token ids and back, byte for byte.
#pragma once
#include "data/bpe_encode.h"
#include "data/pre_tokenizer.h"
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace triax {

/// A token outside the merges. Its text inside a document is ordinary text unless parsing is asked for.
struct AddedToken {
  int32_t id;
  std::string text;
  bool special; ///< stands for no text (end of text, say): counts 0 bytes
};

/// What a tokenizer is made of.
struct TokenizerParts {
  std::vector<std::string> tokens; ///< bytes of each token by id; an id that no token has: empty
  std::vector<Merge> merges;       ///< by rank
  std::vector<Split> splits;       ///< the pre-tokenizer
  std::vector<AddedToken> added;   ///< their texts stand in `tokens` too
  bool ignore_merges = false;      ///< a piece that is a token as a whole is taken as that token
  std::optional<int32_t> end_of_text, begin_of_text;
  /// The texts of the files it was read from, which `save` writes back unchanged; empty when trained here.
  std::string json, config;
};

struct TokenizerTables;

/// Immutable and cheap to copy. All functions may be called from several threads.
class Tokenizer {
public:
  /// Throws when one of the 256 bytes has no token or a merge names a token that does not exist.
  explicit Tokenizer(TokenizerParts parts);
  /// `path`: a Hugging Face `tokenizer.json` or the folder that holds one (and perhaps `tokenizer_config.json`, which
  /// names the end-of-text token). What is not supported is refused by its name in the file.
  static Tokenizer load(const std::string& path);
  /// Writes `tokenizer.json` and `tokenizer_config.json` into an existing folder.
  void save(const std::string& folder) const;

  /// The ids of `text`; of empty text none. `parse_added`: texts of added tokens become those tokens (the longest of
  /// those that start first); otherwise they are ordinary text. To encode much, keep an Encoder.
  std::vector<int32_t> encode(std::string_view text, bool parse_added = false) const;
  /// Exactly the encoded bytes; added tokens give their texts. Refuses an id that stands for no token.
  std::string decode(std::span<const int32_t> ids) const;

  /// Largest id + 1.
  int64_t vocab_size() const;
  /// Bytes of text that the token stands for, at its true length; special tokens stand for 0.
  int64_t token_bytes(int32_t id) const;
  /// The token's bytes (a special token's text); empty when the id stands for no token.
  const std::string& token(int32_t id) const;
  std::optional<int32_t> end_of_text() const;
  std::optional<int32_t> begin_of_text() const;
  /// XXH3-64 over tokens, merges, splits and added tokens; independent of how a file spells them.
  uint64_t hash() const;
  const TokenizerParts& parts() const;

private:
  friend class Encoder;
  std::shared_ptr<const TokenizerTables> tables_;
};

/// Encodes with a cache of pieces seen before. For one thread.
class Encoder {
public:
  explicit Encoder(const Tokenizer& tokenizer, bool parse_added = false);
  Encoder(Encoder&&) noexcept;
  ~Encoder();
  /// Appends the ids of `text` to `ids`.
  void encode(std::string_view text, std::vector<int32_t>& ids);

private:
  class PieceCache;
  void encode_ordinary(std::string_view text, std::vector<int32_t>& ids);
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids);

  std::shared_ptr<const TokenizerTables> tables_;
  bool parse_added_;
  PreTokenizer pre_tokenizer_;
  std::unique_ptr<PieceCache> cache_;
  std::vector<int32_t> symbols_;
};

} // namespace triax
