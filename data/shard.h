// Token shards: the file that training reads.
//
// A shard is little-endian and has three parts:
//
//   offset  size  header, 128 bytes
//        0     8  magic "TRIAXTOK"
//        8     4  version, 1
//       12     4  token width in bytes: 2 (vocabulary <= 65,536) or 4
//       16     8  number of tokens, n
//       24     8  number of documents, d
//       32     8  size of the vocabulary: every id is below it
//       40     8  hash of the tokenizer (Tokenizer::hash)
//       48     8  content hash: XXH3-64 over the tokens, the document offsets, and the header with this field zero
//       56     8  bytes of text that the tokens stand for
//       64    64  zero
//      128  n*width  tokens, unsigned
//        .  0..6  zero, up to a multiple of 8
//        .  (d+1)*8  document offsets, u64, in tokens: document i is [offset[i], offset[i+1]); the last is n
//
// A document's end-of-text token is its last token and counts in its length. There is no sentinel value.
// llm.c shards (magic 20240520 version 1 and 20240801 version 7) and Megatron ones (.idx beside .bin) are read too.
#pragma once
#include "data/file.h"
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace triax {

struct ShardHeader {
  int32_t width = 2;
  int64_t tokens = 0, documents = 0;
  int64_t vocabulary = 0;      ///< 0: unknown (formats that do not say)
  uint64_t tokenizer_hash = 0; ///< 0: unknown
  uint64_t content_hash = 0;   ///< 0: unknown
  int64_t text_bytes = 0;      ///< 0: unknown
};

/// 2 while every id below `vocabulary` fits (65,536 entries do), 4 beyond.
int32_t token_width(int64_t vocabulary);
/// The 128 bytes at a shard's start.
std::string encode_shard_header(const ShardHeader& header);

struct ShardHasher;

/// Writes a shard, document by document; it appears under its name only when finished.
class ShardWriter {
public:
  ShardWriter(const std::string& path, int64_t vocabulary, uint64_t tokenizer_hash);
  ~ShardWriter();
  /// Refuses an id outside the vocabulary and an empty document. `text_bytes`: length of the document's text.
  void add_document(std::span<const int32_t> ids, int64_t text_bytes);
  int64_t tokens() const { return header_.tokens; }
  /// Completes, syncs and publishes the file.
  ShardHeader finish();

private:
  std::string path_;
  ShardHeader header_;
  OutputFile file_;
  std::vector<uint64_t> offsets_{0};
  std::string packed_;
  std::unique_ptr<ShardHasher> hasher_;
};

/// A shard mapped for reading. Opening costs a few pages whatever the size: header, sizes and ends are checked, the
/// content is not (see `verify`).
class Shard {
public:
  /// Throws a sentence with file, what was found, what was needed and the remedy. For Megatron, `path` may be the
  /// `.idx`, the `.bin` or their common stem.
  static Shard open(const std::string& path);
  const std::string& path() const { return path_; }
  const ShardHeader& header() const { return header_; }
  int64_t tokens() const { return header_.tokens; }
  int64_t documents() const { return header_.documents; }
  /// First token of document `index`; of index = documents(): the number of tokens. An llm.c shard is one document.
  int64_t document_offset(int64_t index) const { return static_cast<int64_t>(offsets_[index]); }
  /// The document that token `position` belongs to.
  int64_t document_of(int64_t position) const;
  /// Copies tokens [first, first + count) to `ids`; refuses ids of `vocabulary` and above with file, offset and id.
  void read(int64_t first, int64_t count, int64_t vocabulary, int32_t* ids) const;
  /// Reads everything: ids below the vocabulary, document offsets rising, content hash. Throws at the first fault.
  void verify() const;

private:
  static Shard open_llmc(MappedFile file);
  static Shard open_megatron(const std::string& stem);
  [[noreturn]] void refuse_id(int64_t position, int64_t id, int64_t vocabulary) const;

  std::string path_;
  MappedFile file_;
  ShardHeader header_;
  const unsigned char* tokens_ = nullptr;
  const uint64_t* offsets_ = nullptr;
  std::vector<uint64_t> own_offsets_; ///< where the file does not hold them in this form
};

} // namespace triax
