#include "data/shard.h"
#include "kernels/check.h"
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <xxhash.h>

namespace triax {

static_assert(std::endian::native == std::endian::little, "shards are little-endian and are mapped as they are");

namespace {

constexpr int64_t kHeaderBytes = 128;
constexpr char kMagic[] = "TRIAXTOK";
constexpr uint32_t kVersion = 1;
constexpr int64_t kMostTokens = int64_t{1} << 56; // so that no size computed from a header overflows

/// The header as it lies in the file.
struct RawHeader {
  char magic[8];
  uint32_t version, width;
  uint64_t tokens, documents, vocabulary, tokenizer_hash, content_hash, text_bytes, zero[8];
};
static_assert(sizeof(RawHeader) == kHeaderBytes);

int64_t aligned(int64_t bytes) { return (bytes + 7) / 8 * 8; }

RawHeader raw(const ShardHeader& header) {
  RawHeader out{};
  std::memcpy(out.magic, kMagic, sizeof out.magic);
  out.version = kVersion;
  out.width = static_cast<uint32_t>(header.width);
  out.tokens = static_cast<uint64_t>(header.tokens);
  out.documents = static_cast<uint64_t>(header.documents);
  out.vocabulary = static_cast<uint64_t>(header.vocabulary);
  out.tokenizer_hash = header.tokenizer_hash;
  out.content_hash = header.content_hash;
  out.text_bytes = static_cast<uint64_t>(header.text_bytes);
  return out;
}

ShardHeader checked(const RawHeader& raw, const std::string& path) {
  const char* remedy = "; the file is damaged or was not written by triax: prepare the data again";
  DEMAND(raw.version == kVersion, path, " is a token shard of version ", raw.version, "; this triax reads version ",
         kVersion, ": prepare the data again");
  DEMAND(raw.width == 2 || raw.width == 4, path, " gives a token width of ", raw.width, " bytes, needed 2 or 4",
         remedy);
  DEMAND(raw.tokens < kMostTokens && raw.documents <= raw.tokens, path, " gives ", raw.tokens, " tokens in ",
         raw.documents, " documents, which cannot be", remedy);
  DEMAND(raw.vocabulary >= 1 && raw.vocabulary <= (raw.width == 2 ? 65536u : 1u << 31), path, " gives a vocabulary of ",
         raw.vocabulary, ", which a token width of ", raw.width, " bytes cannot hold", remedy);
  DEMAND(std::all_of(std::begin(raw.zero), std::end(raw.zero), [](uint64_t word) { return word == 0; }), path,
         " has values in header bytes 64..127, needed zero", remedy);
  ShardHeader out;
  out.width = static_cast<int32_t>(raw.width);
  out.tokens = static_cast<int64_t>(raw.tokens);
  out.documents = static_cast<int64_t>(raw.documents);
  out.vocabulary = static_cast<int64_t>(raw.vocabulary);
  out.tokenizer_hash = raw.tokenizer_hash;
  out.content_hash = raw.content_hash;
  out.text_bytes = static_cast<int64_t>(raw.text_bytes);
  return out;
}

} // namespace

int32_t token_width(int64_t vocabulary) { return vocabulary <= 65536 ? 2 : 4; }

std::string encode_shard_header(const ShardHeader& header) {
  const RawHeader out = raw(header);
  return {reinterpret_cast<const char*>(&out), sizeof out};
}

/// The content hash as it grows.
struct ShardHasher {
  XXH3_state_t* state = XXH3_createState();
  ShardHasher() { XXH3_64bits_reset(state); }
  ShardHasher(const ShardHasher&) = delete;
  ShardHasher& operator=(const ShardHasher&) = delete;
  ~ShardHasher() { XXH3_freeState(state); }
  void add(const void* bytes, size_t size) { XXH3_64bits_update(state, bytes, size); }
  uint64_t finish(ShardHeader header) {
    header.content_hash = 0;
    const std::string bytes = encode_shard_header(header);
    add(bytes.data(), bytes.size());
    return XXH3_64bits_digest(state);
  }
};

ShardWriter::ShardWriter(const std::string& path, int64_t vocabulary, uint64_t tokenizer_hash)
    : path_(path), file_(path), hasher_(std::make_unique<ShardHasher>()) {
  DEMAND(vocabulary >= 1 && vocabulary <= int64_t{1} << 31, "cannot write ", path, ": a vocabulary of ", vocabulary,
         " is outside 1..2^31");
  header_.width = token_width(vocabulary);
  header_.vocabulary = vocabulary;
  header_.tokenizer_hash = tokenizer_hash;
  const std::string blank(kHeaderBytes, '\0');
  file_.append(blank.data(), blank.size());
}

ShardWriter::~ShardWriter() = default;

void ShardWriter::add_document(std::span<const int32_t> ids, int64_t text_bytes) {
  ENSURE(!ids.empty(), "an empty document was given to ", path_);
  packed_.resize(ids.size() * static_cast<size_t>(header_.width));
  for (size_t i = 0; i < ids.size(); ++i) {
    DEMAND(ids[i] >= 0 && ids[i] < header_.vocabulary, "cannot write ", path_, ": token ",
           header_.tokens + static_cast<int64_t>(i), " is ", ids[i], ", outside the vocabulary of ",
           header_.vocabulary);
    const auto id = static_cast<uint32_t>(ids[i]);
    std::memcpy(packed_.data() + i * static_cast<size_t>(header_.width), &id, static_cast<size_t>(header_.width));
  }
  file_.append(packed_.data(), packed_.size());
  hasher_->add(packed_.data(), packed_.size());
  header_.tokens += static_cast<int64_t>(ids.size());
  header_.documents += 1;
  header_.text_bytes += text_bytes;
  offsets_.push_back(static_cast<uint64_t>(header_.tokens));
}

ShardHeader ShardWriter::finish() {
  const int64_t token_bytes = header_.tokens * header_.width;
  const char zeros[8] = {};
  file_.append(zeros, static_cast<size_t>(aligned(token_bytes) - token_bytes));
  file_.append(offsets_.data(), offsets_.size() * sizeof(uint64_t));
  hasher_->add(offsets_.data(), offsets_.size() * sizeof(uint64_t));
  header_.content_hash = hasher_->finish(header_);
  const std::string bytes = encode_shard_header(header_);
  file_.overwrite(0, bytes.data(), bytes.size());
  file_.publish();
  return header_;
}

Shard Shard::open(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path given(path);
  if (given.extension() == ".idx") return open_megatron(fs::path(given).replace_extension().string());
  if (!fs::exists(given) && fs::exists(path + ".idx")) return open_megatron(path);
  Shard shard;
  shard.path_ = path;
  shard.file_ = MappedFile(path);
  const std::string_view bytes = shard.file_.bytes();
  if (!bytes.starts_with(kMagic)) {
    if (given.extension() == ".bin" && fs::exists(fs::path(given).replace_extension(".idx")))
      return open_megatron(fs::path(given).replace_extension().string());
    return open_llmc(std::move(shard.file_));
  }
  DEMAND(shard.file_.size() >= kHeaderBytes, path, " is cut off: ", shard.file_.size(),
         " bytes found, the header alone needs ", kHeaderBytes, "; copy or prepare it again");
  RawHeader raw;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  shard.header_ = checked(raw, path);
  const ShardHeader& header = shard.header_;
  const int64_t offsets_at = kHeaderBytes + aligned(header.tokens * header.width);
  const int64_t needed = offsets_at + (header.documents + 1) * 8;
  DEMAND(shard.file_.size() == needed, path,
         shard.file_.size() < needed ? " is cut off: " : " is too long: ", shard.file_.size(), " bytes found, ", needed,
         " needed for the ", header.tokens, " tokens of ", header.width, " bytes and ", header.documents,
         " documents of its header; copy or prepare it again");
  shard.tokens_ = shard.file_.data() + kHeaderBytes;
  shard.offsets_ = reinterpret_cast<const uint64_t*>(shard.file_.data() + offsets_at);
  DEMAND(shard.offsets_[0] == 0 && shard.document_offset(header.documents) == header.tokens, path,
         ": its documents span tokens ", shard.offsets_[0], "..", shard.document_offset(header.documents),
         ", needed 0..", header.tokens, "; copy or prepare it again");
  return shard;
}

int64_t Shard::document_of(int64_t position) const {
  ENSURE(position >= 0 && position < tokens(), "token ", position, " is not in ", path_);
  const auto* end = offsets_ + documents() + 1;
  return std::upper_bound(offsets_, end, static_cast<uint64_t>(position)) - offsets_ - 1;
}

void Shard::refuse_id(int64_t position, int64_t id, int64_t vocabulary) const {
  fail(concat(path_, ": token ", position, " is ", id, ", but the vocabulary has ", vocabulary,
              " entries; the shard is damaged or belongs to another tokenizer: prepare the data again"));
}

namespace {

/// Widens tokens to int32 and returns the largest (unsigned, so what does not fit int32 is seen as too large).
template <class Token> uint32_t widen(const unsigned char* tokens, int64_t first, int64_t count, int32_t* ids) {
  const Token* from = reinterpret_cast<const Token*>(tokens) + first;
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t id = from[i];
    largest = std::max(largest, id);
    ids[i] = static_cast<int32_t>(id);
  }
  return largest;
}

} // namespace

void Shard::read(int64_t first, int64_t count, int64_t vocabulary, int32_t* ids) const {
  ENSURE(first >= 0 && count >= 0 && first + count <= tokens(), "tokens ", first, "..", first + count, " are not in ",
         path_);
  const uint32_t largest =
      header_.width == 2 ? widen<uint16_t>(tokens_, first, count, ids) : widen<uint32_t>(tokens_, first, count, ids);
  if (count == 0 || largest < vocabulary) return;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = static_cast<uint32_t>(ids[i]);
    if (id >= vocabulary) refuse_id(first + i, id, vocabulary);
  }
}

void Shard::verify() const {
  const int64_t vocabulary = header_.vocabulary > 0 ? header_.vocabulary : int64_t{1} << 31;
  std::vector<int32_t> block(1 << 16);
  for (int64_t at = 0; at < tokens(); at += static_cast<int64_t>(block.size()))
    read(at, std::min(tokens() - at, static_cast<int64_t>(block.size())), vocabulary, block.data());
  for (int64_t i = 0; i < documents(); ++i)
    DEMAND(offsets_[i] < offsets_[i + 1], path_, ": document ", i, " spans tokens ", offsets_[i], "..", offsets_[i + 1],
           "; offsets must rise: copy or prepare the shard again");
  if (header_.content_hash == 0) return;
  ShardHasher hasher;
  hasher.add(tokens_, static_cast<size_t>(tokens() * header_.width));
  hasher.add(offsets_, static_cast<size_t>(documents() + 1) * sizeof(uint64_t));
  const uint64_t found = hasher.finish(header_);
  DEMAND(found == header_.content_hash, path_, ": its content hashes to ", hex64(found), ", its header says ",
         hex64(header_.content_hash), "; the file is damaged: copy or prepare it again");
}

} // namespace triax
