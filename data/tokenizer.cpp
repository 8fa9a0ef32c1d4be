#include "data/tokenizer.h"
#include "data/file.h"
#include "data/tokenizer_json.h"
#include "kernels/check.h"
#include <algorithm>
#include <array>
#include <filesystem>
#include <unordered_map>
#include <xxhash.h>

namespace triax {

/// A tokenizer's parts and what is looked up in them.
struct TokenizerTables {
  TokenizerParts parts;
  MergeTable merges;
  std::array<int32_t, 256> byte_ids{};
  std::vector<int32_t> text_bytes;
  std::unordered_map<std::string_view, int32_t> whole;                 ///< ordinary tokens, when merges may be ignored
  std::array<std::vector<const AddedToken*>, 256> added_by_first_byte; ///< longest first
  uint64_t hash = 0;

  explicit TokenizerTables(TokenizerParts given);
  void check_merges() const;
  uint64_t compute_hash() const;
  /// The added token whose text starts the text, or null.
  const AddedToken* added_at(std::string_view text) const;
};

namespace {

void absorb(XXH3_state_t* state, const void* bytes, size_t size) { XXH3_64bits_update(state, bytes, size); }
void absorb(XXH3_state_t* state, int64_t value) { absorb(state, &value, sizeof value); }
void absorb(XXH3_state_t* state, const std::string& text) {
  absorb(state, static_cast<int64_t>(text.size()));
  absorb(state, text.data(), text.size());
}

} // namespace

TokenizerTables::TokenizerTables(TokenizerParts given) : parts(std::move(given)), merges(parts.merges) {
  const auto& tokens = parts.tokens;
  text_bytes.resize(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) text_bytes[id] = static_cast<int32_t>(tokens[id].size());
  std::vector<bool> is_added(tokens.size());
  for (const AddedToken& token : parts.added) {
    ENSURE(token.id >= 0 && static_cast<size_t>(token.id) < tokens.size() && tokens[token.id] == token.text,
           "added token ", token.text, " is not among the tokens");
    ENSURE(!token.text.empty(), "added token ", token.id, " has no text");
    is_added[token.id] = true;
    if (token.special) text_bytes[token.id] = 0;
    added_by_first_byte[static_cast<unsigned char>(token.text[0])].push_back(&token);
  }
  for (auto& list : added_by_first_byte)
    std::stable_sort(list.begin(), list.end(), [](auto* a, auto* b) { return a->text.size() > b->text.size(); });
  byte_ids.fill(-1);
  for (size_t id = tokens.size(); id-- > 0;) {
    if (is_added[id] || tokens[id].empty()) continue;
    if (tokens[id].size() == 1) byte_ids[static_cast<unsigned char>(tokens[id][0])] = static_cast<int32_t>(id);
    if (parts.ignore_merges) whole[tokens[id]] = static_cast<int32_t>(id);
  }
  for (int byte = 0; byte < 256; ++byte)
    DEMAND(byte_ids[byte] >= 0, "the tokenizer has no token for byte ", byte,
           "; a byte-level vocabulary must hold all 256 bytes");
  check_merges();
  hash = compute_hash();
}

void TokenizerTables::check_merges() const {
  const auto& tokens = parts.tokens;
  const auto known = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < tokens.size(); };
  for (size_t rank = 0; rank < parts.merges.size(); ++rank) {
    const Merge& merge = parts.merges[rank];
    DEMAND(known(merge.left) && known(merge.right) && known(merge.merged) && !tokens[merge.left].empty() &&
               !tokens[merge.right].empty() && tokens[merge.merged] == tokens[merge.left] + tokens[merge.right],
           "merge ", rank, " of the tokenizer, ", merge.left, " ", merge.right, " -> ", merge.merged,
           ", does not join the bytes of its tokens");
  }
}

uint64_t TokenizerTables::compute_hash() const {
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset(state);
  absorb(state, static_cast<int64_t>(parts.tokens.size()));
  for (const std::string& token : parts.tokens) absorb(state, token);
  absorb(state, static_cast<int64_t>(parts.merges.size()));
  for (const Merge& merge : parts.merges) {
    absorb(state, merge.left);
    absorb(state, merge.right);
    absorb(state, merge.merged);
  }
  absorb(state, static_cast<int64_t>(parts.splits.size()));
  for (const Split& split : parts.splits) {
    absorb(state, split.literal);
    absorb(state, split.pattern);
  }
  std::vector<AddedToken> added = parts.added;
  std::sort(added.begin(), added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  absorb(state, static_cast<int64_t>(added.size()));
  for (const AddedToken& token : added) {
    absorb(state, token.id);
    absorb(state, token.special);
  }
  absorb(state, parts.ignore_merges);
  const uint64_t digest = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return digest;
}

const AddedToken* TokenizerTables::added_at(std::string_view text) const {
  for (const AddedToken* token : added_by_first_byte[static_cast<unsigned char>(text[0])])
    if (text.starts_with(token->text)) return token;
  return nullptr;
}

Tokenizer::Tokenizer(TokenizerParts parts) : tables_(std::make_shared<const TokenizerTables>(std::move(parts))) {
  PreTokenizer compiles(tables_->parts.splits); // a bad pattern is refused here, not at the first text
}

Tokenizer Tokenizer::load(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path file = fs::is_directory(path) ? fs::path(path) / "tokenizer.json" : fs::path(path);
  DEMAND(fs::exists(file), "there is no tokenizer at ", file.string(),
         "; name a folder that holds tokenizer.json, or the file itself");
  const fs::path config = file.parent_path() / "tokenizer_config.json";
  auto parts = parse_tokenizer_json(file.string(), read_file(file.string()),
                                    fs::exists(config) ? read_file(config.string()) : "");
  try {
    return Tokenizer(std::move(parts));
  } catch (const Error& error) {
    fail(concat(file.string(), ": ", error.what()));
  }
}

void Tokenizer::save(const std::string& folder) const {
  const auto& parts = tables_->parts;
  write_file(folder + "/tokenizer.json", parts.json.empty() ? tokenizer_json(parts) : parts.json);
  write_file(folder + "/tokenizer_config.json", parts.config.empty() ? tokenizer_config_json(parts) : parts.config);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_added) const {
  std::vector<int32_t> ids;
  Encoder(*this, parse_added).encode(text, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (int32_t id : ids) {
    const std::string& bytes = token(id);
    DEMAND(!bytes.empty(), "id ", id, " stands for no token of this tokenizer, whose vocabulary is ", vocab_size());
    text += bytes;
  }
  return text;
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(tables_->parts.tokens.size()); }
int64_t Tokenizer::token_bytes(int32_t id) const {
  DEMAND(id >= 0 && id < vocab_size(), "id ", id, " is outside the tokenizer's vocabulary of ", vocab_size());
  return tables_->text_bytes[id];
}
const std::string& Tokenizer::token(int32_t id) const {
  DEMAND(id >= 0 && id < vocab_size(), "id ", id, " is outside the tokenizer's vocabulary of ", vocab_size());
  return tables_->parts.tokens[id];
}
std::optional<int32_t> Tokenizer::end_of_text() const { return tables_->parts.end_of_text; }
std::optional<int32_t> Tokenizer::begin_of_text() const { return tables_->parts.begin_of_text; }
uint64_t Tokenizer::hash() const { return tables_->hash; }
const TokenizerParts& Tokenizer::parts() const { return tables_->parts; }

/// Pieces and their ids: open addressing over two pools, emptied when full.
class Encoder::PieceCache {
public:
  static constexpr size_t kLongestKey = 128;

  struct Slot {
    uint64_t hash = 0;
    uint32_t key_at = 0, key_size = 0, ids_at = 0, ids_size = 0; ///< key_size 0: empty
  };

  /// The ids of all pieces, into which slots point.
  const std::vector<int32_t>& ids() const { return ids_; }

  /// Null when the piece was not seen.
  const Slot* find(std::string_view piece, uint64_t hash) const {
    for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.key_size == 0) return nullptr;
      if (slot.hash == hash && std::string_view(keys_).substr(slot.key_at, slot.key_size) == piece) return &slot;
    }
  }

  void add(std::string_view piece, uint64_t hash, const std::vector<int32_t>& ids) {
    if (used_ == kMostPieces) clear();
    if (used_ * 2 >= slots_.size()) grow();
    place({hash, static_cast<uint32_t>(keys_.size()), static_cast<uint32_t>(piece.size()),
           static_cast<uint32_t>(ids_.size()), static_cast<uint32_t>(ids.size())});
    ++used_;
    keys_ += piece;
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

private:
  static constexpr size_t kMostPieces = 1 << 18, kFirstSlots = 1 << 10;

  void place(const Slot& slot) {
    size_t i = slot.hash & mask_;
    while (slots_[i].key_size != 0) i = (i + 1) & mask_;
    slots_[i] = slot;
  }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    for (const Slot& slot : old)
      if (slot.key_size != 0) place(slot);
  }
  void clear() {
    std::fill(slots_.begin(), slots_.end(), Slot{});
    keys_.clear();
    ids_.clear();
    used_ = 0;
  }

  std::vector<Slot> slots_ = std::vector<Slot>(kFirstSlots);
  size_t mask_ = kFirstSlots - 1, used_ = 0;
  std::string keys_;
  std::vector<int32_t> ids_;
};

Encoder::Encoder(const Tokenizer& tokenizer, bool parse_added)
    : tables_(tokenizer.tables_), parse_added_(parse_added), pre_tokenizer_(tables_->parts.splits),
      cache_(std::make_unique<PieceCache>()) {}
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder::~Encoder() = default;

void Encoder::encode(std::string_view text, std::vector<int32_t>& ids) {
  size_t start = 0;
  for (size_t i = 0; parse_added_ && i < text.size();) {
    const AddedToken* token = tables_->added_at(text.substr(i));
    if (!token) {
      ++i;
      continue;
    }
    encode_ordinary(text.substr(start, i - start), ids);
    ids.push_back(token->id);
    start = i += token->text.size();
  }
  encode_ordinary(text.substr(start), ids);
}

void Encoder::encode_ordinary(std::string_view text, std::vector<int32_t>& ids) {
  pre_tokenizer_.split(text, [&](std::string_view piece) { encode_piece(piece, ids); });
}

void Encoder::encode_piece(std::string_view piece, std::vector<int32_t>& ids) {
  const bool cached = piece.size() <= PieceCache::kLongestKey;
  const uint64_t hash = cached ? XXH3_64bits(piece.data(), piece.size()) : 0;
  if (cached) {
    if (const auto* slot = cache_->find(piece, hash)) {
      const int32_t* first = cache_->ids().data() + slot->ids_at;
      ids.insert(ids.end(), first, first + slot->ids_size);
      return;
    }
  }
  symbols_.clear();
  const auto whole = tables_->whole.find(piece);
  if (whole != tables_->whole.end()) {
    symbols_.push_back(whole->second);
  } else {
    for (char c : piece) symbols_.push_back(tables_->byte_ids[static_cast<unsigned char>(c)]);
    merge_piece(tables_->merges, symbols_);
  }
  ids.insert(ids.end(), symbols_.begin(), symbols_.end());
  if (cached) cache_->add(piece, hash, symbols_);
}

} // namespace triax
