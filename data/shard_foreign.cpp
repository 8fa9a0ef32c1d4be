// Shards of llm.c and of Megatron-LM, read in place.
#include "data/shard.h"
#include "kernels/check.h"
#include <cstring>

namespace triax {
namespace {

template <class T> T load(const MappedFile& file, int64_t at) {
  T value;
  std::memcpy(&value, file.data() + at, sizeof value);
  return value;
}

} // namespace

/// llm.c `dev/data/data_common.py`: 256 int32 of header (magic, version, number of tokens), then the tokens.
Shard Shard::open_llmc(MappedFile file) {
  constexpr int64_t kHeader = 256 * 4;
  constexpr int32_t kGpt2Magic = 20240520, kLlama3Magic = 20240801;
  const std::string path = file.path();
  const int32_t magic = file.size() >= 4 ? load<int32_t>(file, 0) : 0;
  DEMAND(magic == kGpt2Magic || magic == kLlama3Magic, path, " (", file.size(),
         " bytes) is not a token shard: it starts neither with TRIAXTOK nor with an llm.c magic, and no Megatron .idx "
         "lies "
         "beside it; make shards with `triax data prepare`");
  DEMAND(file.size() >= kHeader, path, " is cut off: ", file.size(), " bytes found, an llm.c header needs ", kHeader);
  const int32_t version = load<int32_t>(file, 4), width = magic == kGpt2Magic ? 2 : 4;
  DEMAND(version == (magic == kGpt2Magic ? 1 : 7), path, " is an llm.c shard of version ", version, " with magic ",
         magic, "; versions 1 (20240520) and 7 (20240801) are read");
  const int64_t tokens = load<int32_t>(file, 8), needed = kHeader + tokens * width;
  DEMAND(tokens >= 0 && file.size() == needed, path, " does not have its length: ", file.size(), " bytes found, ",
         needed, " needed for the ", tokens, " tokens of its header; copy or make it again");
  Shard shard;
  shard.path_ = path;
  shard.header_.width = width;
  shard.header_.tokens = tokens;
  shard.header_.documents = tokens > 0 ? 1 : 0;
  shard.own_offsets_.push_back(0);
  if (tokens > 0) shard.own_offsets_.push_back(static_cast<uint64_t>(tokens));
  shard.offsets_ = shard.own_offsets_.data();
  shard.file_ = std::move(file);
  shard.tokens_ = shard.file_.data() + kHeader;
  return shard;
}

/// Megatron-LM `megatron/core/datasets/indexed_dataset.py`: `.idx` holds the type, the sequences' lengths and offsets
/// and the documents' first sequences; `.bin` holds the tokens.
Shard Shard::open_megatron(const std::string& stem) {
  constexpr int64_t kHeader = 9 + 8 + 1 + 8 + 8;
  const MappedFile index(stem + ".idx");
  const std::string& name = index.path();
  DEMAND(index.size() >= kHeader && std::memcmp(index.data(), "MMIDIDX\0\0", 9) == 0, name,
         " is not a Megatron index: it does not start with MMIDIDX");
  const auto version = load<uint64_t>(index, 9);
  DEMAND(version == 1, name, " is a Megatron index of version ", version, "; version 1 is read");
  const int type = load<uint8_t>(index, 17);
  DEMAND(type == 8 || type == 4, name, " holds tokens of type code ", type,
         "; 8 (unsigned 16 bits) and 4 (signed 32 bits) are read");
  const int64_t sequences = load<int64_t>(index, 18), documents = load<int64_t>(index, 26);
  constexpr int64_t kMost = int64_t{1} << 56;
  DEMAND(sequences >= 0 && sequences < kMost && documents >= 1 && documents < kMost &&
             (index.size() - kHeader) / 4 >= sequences && index.size() >= kHeader + sequences * 12 + documents * 8,
         name, " is cut off: ", index.size(), " bytes found for ", sequences, " sequences and ", documents - 1,
         " documents; copy it again");
  Shard shard;
  shard.path_ = stem + ".bin";
  shard.header_.width = type == 8 ? 2 : 4;
  const int64_t offsets_at = kHeader + sequences * 4, documents_at = offsets_at + sequences * 8;
  int64_t tokens = 0, document = 0;
  for (int64_t i = 0; i <= sequences; ++i) {
    for (; document < documents && load<int64_t>(index, documents_at + document * 8) == i; ++document)
      if (shard.own_offsets_.empty() || shard.own_offsets_.back() < static_cast<uint64_t>(tokens))
        shard.own_offsets_.push_back(static_cast<uint64_t>(tokens));
    if (i == sequences) break;
    const int64_t length = load<int32_t>(index, kHeader + i * 4), at = load<int64_t>(index, offsets_at + i * 8);
    DEMAND(length >= 0 && at == tokens * shard.header_.width, name, ": sequence ", i, " of ", length,
           " tokens lies at byte ", at, " of the .bin file, needed ", tokens * shard.header_.width,
           "; only files whose sequences follow one another are read");
    tokens += length;
  }
  DEMAND(document == documents && shard.own_offsets_.front() == 0 &&
             shard.own_offsets_.back() == static_cast<uint64_t>(tokens),
         name, ": its list of documents does not rise from 0 to the ", sequences, " sequences; copy it again");
  shard.header_.tokens = tokens;
  shard.header_.documents = static_cast<int64_t>(shard.own_offsets_.size()) - 1;
  shard.offsets_ = shard.own_offsets_.data();
  shard.file_ = MappedFile(shard.path_);
  DEMAND(shard.file_.size() == tokens * shard.header_.width, shard.path_,
         " does not have its length: ", shard.file_.size(), " bytes found, ", tokens * shard.header_.width,
         " needed for the ", tokens, " tokens of ", name, "; copy it again");
  shard.tokens_ = shard.file_.data();
  return shard;
}

} // namespace triax
