#include "data/dataset.h"
#include "data/permutation.h"
#include "kernels/check.h"
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace triax {

struct Dataset::State {
  DatasetOptions options;
  std::string name; ///< for messages: the folder and split, or the files
  std::vector<Shard> shards;
  std::vector<int64_t> starts{0}; ///< of each shard in the stream, and the stream's length
  uint64_t tokenizer_hash = 0;
  int64_t vocabulary = 0, samples = 0;

  void add(Shard shard);
  void check_length();
  int64_t tokens() const { return starts.back(); }
  size_t shard_of(int64_t position) const;
  void read(int64_t first, int64_t count, int32_t* ids) const;
  void fill_document_start(int64_t window, int64_t inputs, int32_t* row) const;
};

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A member of an object in `dataset.json`; `key` is its whole path, for the sentence.
const json& member(const json& object, std::string_view name, json::value_t type, std::string_view file,
                   std::string_view key) {
  const bool there = object.is_object() && object.contains(std::string(name));
  DEMAND(there, file, " is damaged: it has no ", key, "; prepare the data again");
  const json& value = object.at(std::string(name));
  const bool right = type == json::value_t::number_integer ? value.is_number_integer() : value.type() == type;
  DEMAND(right, file, " is damaged: ", key, " is of type ", value.type_name(), ", but must be of type ",
         json(type).type_name(), "; prepare the data again");
  return value;
}

json read_index(const std::string& file) {
  try {
    return json::parse(read_file(file));
  } catch (const json::exception& error) {
    const std::string what = error.what(); // "[json.exception.NAME.NUMBER] REASON"
    fail(concat(file, " is damaged: ", what.substr(std::min(what.size(), what.find("] ") + 2)),
                "; prepare the data again"));
  }
}

/// Opens the shards that `dataset.json` lists for a split, each held to what stands there.
std::vector<Shard> open_folder(const std::string& folder, const std::string& split) {
  const std::string file = (fs::path(folder) / "dataset.json").string();
  std::error_code error;
  DEMAND(fs::is_directory(folder, error), "there is no data folder ", folder, "; make one with `triax data prepare`");
  DEMAND(fs::exists(file, error), folder,
         " is not a data folder: it holds no dataset.json; make one with `triax data prepare`");
  using Type = json::value_t;
  const json root = read_index(file);
  const json& splits = member(root, "splits", Type::object, file, "splits");
  DEMAND(splits.contains(split), file, " has no split \"", split,
         "\"; there must be train and val: prepare the data again");
  std::string key = "splits." + split;
  const json& listed =
      member(member(splits, split, Type::object, file, key), "shards", Type::array, file, key + ".shards");
  std::vector<Shard> shards;
  for (size_t i = 0; i < listed.size(); ++i) {
    key = concat("splits.", split, ".shards[", i, "].");
    const auto get = [&](const char* name, Type type) { return member(listed[i], name, type, file, key + name); };
    const std::string name = get("file", Type::string), hash = get("content_hash", Type::string);
    const json tokens = get("tokens", Type::number_integer);
    Shard shard = Shard::open((fs::path(folder) / name).string());
    const std::string found = hex64(shard.header().content_hash);
    DEMAND(hash == found && tokens == shard.tokens(), shard.path(), " is not the shard that ", file,
           " lists: ", shard.tokens(), " tokens with content hash ", found, " found, ", tokens.dump(), " with ", hash,
           " needed; prepare the data again");
    shards.push_back(std::move(shard));
  }
  return shards;
}

/// Positions stably sorted by token: a counting sort.
std::vector<int32_t> sorted_positions(const std::vector<int32_t>& tokens) {
  const int32_t largest = *std::max_element(tokens.begin(), tokens.end());
  std::vector<int32_t> place(static_cast<size_t>(largest) + 2), order(tokens.size());
  for (int32_t token : tokens) ++place[static_cast<size_t>(token) + 1];
  for (size_t i = 1; i < place.size(); ++i) place[i] += place[i - 1];
  for (size_t i = 0; i < tokens.size(); ++i)
    order[static_cast<size_t>(place[static_cast<size_t>(tokens[i])]++)] = static_cast<int32_t>(i);
  return order;
}

} // namespace

void Dataset::State::add(Shard shard) {
  const ShardHeader& header = shard.header();
  DEMAND(header.vocabulary <= options.vocabulary, shard.path(), " was made with a vocabulary of ", header.vocabulary,
         " entries, the model has ", options.vocabulary,
         "; give the model the tokenizer's vocabulary or prepare the data ", "with the model's tokenizer");
  if (!shards.empty() && header.tokenizer_hash && tokenizer_hash)
    DEMAND(header.tokenizer_hash == tokenizer_hash, shard.path(), " was made with tokenizer ",
           hex64(header.tokenizer_hash), ", the shards before it (", shards[0].path(), ") with ", hex64(tokenizer_hash),
           "; prepare all data with one tokenizer");
  if (header.tokenizer_hash) tokenizer_hash = header.tokenizer_hash;
  vocabulary = std::max(vocabulary, header.vocabulary);
  starts.push_back(starts.back() + shard.tokens());
  shards.push_back(std::move(shard));
}

void Dataset::State::check_length() {
  const int64_t needed = options.sequence + 1;
  DEMAND(tokens() >= needed, name, ": ", tokens(), " tokens found, ", needed, " needed for one window of sequence ",
         options.sequence, "; use more text or a shorter sequence",
         options.split == "val" ? " (or hold out more of the text)" : "");
  samples = (tokens() - 1 + options.sequence - 1) / options.sequence;
}

size_t Dataset::State::shard_of(int64_t position) const {
  return static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), position) - starts.begin() - 1);
}

void Dataset::State::read(int64_t first, int64_t count, int32_t* ids) const {
  while (count > 0) {
    const size_t s = shard_of(first);
    const int64_t n = std::min(count, starts[s + 1] - first);
    const int64_t known = shards[s].header().vocabulary;
    shards[s].read(first - starts[s], n, known > 0 ? known : options.vocabulary, ids);
    first += n;
    ids += n;
    count -= n;
  }
}

void Dataset::State::fill_document_start(int64_t window, int64_t inputs, int32_t* row) const {
  for (int64_t t = 0; t < inputs;) {
    const size_t s = shard_of(window + t);
    const int64_t document = shards[s].document_of(window + t - starts[s]);
    const int64_t begin = starts[s] + shards[s].document_offset(document) - window;
    const int64_t end = std::min(starts[s] + shards[s].document_offset(document + 1) - window, inputs);
    ENSURE(end > t, shards[s].path(), " has a document without an end");
    std::fill(row + t, row + end, static_cast<int32_t>(std::max<int64_t>(begin, 0)));
    t = end;
  }
  std::fill(row + inputs, row + options.sequence, static_cast<int32_t>(inputs));
}

Dataset Dataset::open(const DatasetOptions& options) {
  DEMAND(options.sequence >= 1 && options.sequence < int64_t{1} << 31, "the sequence length is ", options.sequence,
         "; it must be at least 1");
  DEMAND(options.vocabulary >= 1, "the model's vocabulary is ", options.vocabulary, "; it must be at least 1");
  DEMAND(options.folder.empty() != options.shards.empty(), "name a data folder, or a list of shards");
  auto state = std::make_shared<State>();
  state->options = options;
  if (!options.folder.empty()) {
    state->name = options.folder + ", split " + options.split;
    for (Shard& shard : open_folder(options.folder, options.split)) state->add(std::move(shard));
  } else {
    for (const std::string& path : options.shards) {
      state->name += (state->name.empty() ? "" : ", ") + path;
      state->add(Shard::open(path));
    }
  }
  state->check_length();
  Dataset out;
  out.state_ = std::move(state);
  return out;
}

int64_t Dataset::samples_per_epoch() const { return state_->samples; }
int64_t Dataset::tokens() const { return state_->tokens(); }
int64_t Dataset::sequence() const { return state_->options.sequence; }
uint64_t Dataset::tokenizer_hash() const { return state_->tokenizer_hash; }
int64_t Dataset::vocabulary() const { return state_->vocabulary; }

int64_t Dataset::documents() const {
  int64_t sum = 0;
  for (const Shard& shard : state_->shards) sum += shard.documents();
  return sum;
}

int64_t Dataset::text_bytes() const {
  int64_t sum = 0;
  for (const Shard& shard : state_->shards) {
    if (shard.tokens() > 0 && shard.header().text_bytes == 0) return 0;
    sum += shard.header().text_bytes;
  }
  return sum;
}

int64_t Dataset::window_start(int64_t sample) const {
  ENSURE(sample >= 0, "sample ", sample, " was asked for");
  const int64_t epoch = sample / state_->samples, index = sample % state_->samples;
  const uint64_t key = mix64(state_->options.seed, static_cast<uint64_t>(epoch));
  return (state_->options.shuffle ? permuted(index, state_->samples, key) : index) * state_->options.sequence;
}

Batch Dataset::batch(int64_t first_sample, int64_t count) const {
  const int64_t T = state_->options.sequence;
  ENSURE(first_sample >= 0 && count >= 1 && count < (int64_t{1} << 31) / T, "a batch of ", count, " samples from ",
         first_sample, " of sequence ", T);
  Batch batch{first_sample, count, T, 0, {}, {}, {}, {}};
  const auto size = static_cast<size_t>(count * T);
  batch.tokens.assign(size, 0);
  batch.labels.assign(size, -1);
  batch.document_start.resize(size);
  std::vector<int32_t> window(static_cast<size_t>(T) + 1);
  for (int64_t b = 0; b < count; ++b) {
    const int64_t start = window_start(first_sample + b);
    const int64_t inputs = std::min(T, state_->tokens() - 1 - start);
    state_->read(start, inputs + 1, window.data());
    std::copy_n(window.begin(), inputs, batch.tokens.begin() + b * T);
    std::copy_n(window.begin() + 1, inputs, batch.labels.begin() + b * T);
    state_->fill_document_start(start, inputs, batch.document_start.data() + b * T);
    batch.counted += inputs;
  }
  batch.token_order = sorted_positions(batch.tokens);
  return batch;
}

Batch Dataset::batch_once(int64_t first_sample, int64_t count, int64_t samples) const {
  Batch out = batch(first_sample, count);
  const int64_t kept = std::clamp<int64_t>(samples - first_sample, 0, count);
  std::fill(out.labels.begin() + kept * out.sequence, out.labels.end(), -1);
  out.counted = std::count_if(out.labels.begin(), out.labels.end(), [](int32_t label) { return label >= 0; });
  return out;
}

Batch rows_at(const Batch& batch, const std::vector<int32_t>& positions, bool all_starts) {
  Batch rows{batch.first_sample, batch.count, int64_t(positions.size()), 0, {}, {}, {}, {}};
  for (int64_t b = 0; b < batch.count; ++b)
    for (const int32_t position : positions) {
      const auto at = static_cast<size_t>(b * batch.sequence + position);
      rows.tokens.push_back(batch.tokens[at]);
      rows.labels.push_back(batch.labels[at]);
      rows.document_start.push_back(batch.document_start[at]);
      rows.counted += batch.labels[at] >= 0;
    }
  if (all_starts) rows.document_start = batch.document_start;
  rows.token_order = sorted_positions(rows.tokens);
  return rows;
}

int64_t label_bytes(const Batch& batch, const Tokenizer& tokenizer) {
  int64_t bytes = 0;
  for (int32_t label : batch.labels)
    if (label >= 0) bytes += tokenizer.token_bytes(label);
  return bytes;
}

} // namespace triax
