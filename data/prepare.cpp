#include "data/prepare.h"
#include "kernels/check.h"
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

namespace triax {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// A folder under construction, removed unless it was published.
class AsideFolder {
public:
  explicit AsideFolder(const std::string& target) : target_(target), aside_(target + ".partial") {
    std::error_code error;
    DEMAND(!fs::exists(target_, error), target, " exists already; remove it or name another output folder");
    fs::remove_all(aside_, error); // of a run that was killed
    for (fs::path parent = aside_.parent_path(); !parent.empty() && !fs::exists(parent, error);
         parent = parent.parent_path())
      made_parents_.push_back(parent);
    fs::create_directories(aside_, error);
    if (error) remove();
    DEMAND(!error, "cannot make folder ", aside_.string(), ": ", error.message(), "; name another output folder");
  }
  AsideFolder(const AsideFolder&) = delete;
  AsideFolder& operator=(const AsideFolder&) = delete;
  ~AsideFolder() {
    if (!published_) remove();
  }
  std::string path() const { return aside_.string(); }
  void publish() {
    sync_folder(aside_.string());
    std::error_code error;
    fs::rename(aside_, target_, error);
    DEMAND(!error, "cannot rename ", aside_.string(), " to ", target_.string(), ": ", error.message());
    published_ = true;
    sync_folder(target_.parent_path().string());
  }

private:
  /// The folder and the parents made for it, unless another process has put something there meanwhile.
  void remove() const {
    std::error_code ignored;
    fs::remove_all(aside_, ignored);
    for (const fs::path& parent : made_parents_) fs::remove(parent, ignored); // a folder only when empty
  }

  fs::path target_, aside_;
  std::vector<fs::path> made_parents_; ///< innermost first
  bool published_ = false;
};

/// The shards of one split, opened and closed as documents come.
class SplitWriter {
public:
  SplitWriter(std::string folder, std::string name, int64_t shard_tokens, const Tokenizer& tokenizer)
      : folder_(std::move(folder)), name_(std::move(name)), shard_tokens_(shard_tokens), tokenizer_(tokenizer) {}

  void add(std::span<const int32_t> ids, int64_t text_bytes) {
    if (writer_ && writer_->tokens() + static_cast<int64_t>(ids.size()) > shard_tokens_) close();
    if (!writer_) {
      char file[64];
      std::snprintf(file, sizeof file, "%s_%05d.shard", name_.c_str(), static_cast<int>(summary_.files.size()));
      summary_.files.push_back(file);
      writer_.emplace(folder_ + "/" + file, tokenizer_.vocab_size(), tokenizer_.hash());
    }
    writer_->add_document(ids, text_bytes);
  }

  SplitSummary finish() {
    if (writer_) close();
    return std::move(summary_);
  }

private:
  void close() {
    const ShardHeader header = writer_->finish();
    writer_.reset();
    summary_.shards.push_back(header);
    summary_.tokens += header.tokens;
    summary_.documents += header.documents;
    summary_.text_bytes += header.text_bytes;
  }

  std::string folder_, name_;
  int64_t shard_tokens_;
  const Tokenizer& tokenizer_;
  SplitSummary summary_;
  std::optional<ShardWriter> writer_;
};

/// A document's ids between the tokens that mark its ends, each of which stands there once however the text begins and
/// ends.
class DocumentEncoder {
public:
  DocumentEncoder(const PrepareOptions& options, const Tokenizer& tokenizer)
      : options_(options), tokenizer_(tokenizer), encoder_(tokenizer, options.parse_added) {
    DEMAND(
        !options.end_of_text || tokenizer.end_of_text(),
        "the tokenizer has no end-of-text token; name one as eos_token in tokenizer_config.json beside tokenizer.json");
    DEMAND(!options.begin_of_text || tokenizer.begin_of_text(),
           "the tokenizer has no begin-of-text token; name one as bos_token in tokenizer_config.json beside "
           "tokenizer.json");
  }

  const std::vector<int32_t>& encode(std::string_view document) {
    ids_.clear();
    if (options_.begin_of_text) ids_.push_back(*tokenizer_.begin_of_text());
    encoder_.encode(document, ids_);
    if (options_.begin_of_text && ids_.size() > 1 && ids_[1] == ids_[0]) ids_.erase(ids_.begin());
    if (options_.end_of_text && ids_.back() != *tokenizer_.end_of_text()) ids_.push_back(*tokenizer_.end_of_text());
    return ids_;
  }

  int64_t text_bytes() const {
    int64_t bytes = 0;
    for (int32_t id : ids_) bytes += tokenizer_.token_bytes(id);
    return bytes;
  }

private:
  const PrepareOptions& options_;
  const Tokenizer& tokenizer_;
  Encoder encoder_;
  std::vector<int32_t> ids_;
};

ordered_json split_json(const SplitSummary& split) {
  ordered_json shards = ordered_json::array();
  for (size_t i = 0; i < split.files.size(); ++i)
    shards.push_back({{"file", split.files[i]},
                      {"tokens", split.shards[i].tokens},
                      {"documents", split.shards[i].documents},
                      {"text_bytes", split.shards[i].text_bytes},
                      {"content_hash", hex64(split.shards[i].content_hash)}});
  return {
      {"tokens", split.tokens}, {"documents", split.documents}, {"text_bytes", split.text_bytes}, {"shards", shards}};
}

std::string dataset_json(const PrepareOptions& options, const PrepareSummary& summary, const Tokenizer& tokenizer) {
  ordered_json inputs = ordered_json::array();
  for (const std::string& path : options.documents.inputs) inputs.push_back(fs::path(path).filename().string());
  const ordered_json root = {
      {"format", "triax data"},
      {"version", 1},
      {"tokenizer_hash", hex64(tokenizer.hash())},
      {"vocabulary", tokenizer.vocab_size()},
      {"end_of_text", options.end_of_text ? ordered_json(*tokenizer.end_of_text()) : ordered_json()},
      {"begin_of_text", options.begin_of_text ? ordered_json(*tokenizer.begin_of_text()) : ordered_json()},
      {"held_out", options.held_out},
      {"seed", options.seed},
      {"inputs", inputs},
      {"documents",
       {{"read", summary.documents.documents},
        {"blank", summary.documents.blank},
        {"empty", summary.documents.empty},
        {"skipped", summary.documents.skipped}}},
      {"splits", {{"train", split_json(summary.train)}, {"val", split_json(summary.val)}}}};
  return root.dump(2) + "\n";
}

void check(const PrepareOptions& options) {
  DEMAND(options.held_out >= 0 && options.held_out < 1, "held_out is ", options.held_out, "; it must be in [0, 1)");
  DEMAND(options.shard_tokens >= 1, "shard_tokens is ", options.shard_tokens, "; it must be at least 1");
  DEMAND(!options.output.empty(), "no output folder was named");
}

/// Says why there is nothing to train on.
void demand_documents(const PrepareSummary& summary, const PrepareOptions& options) {
  const std::string first = options.documents.inputs[0];
  int64_t faulty = 0;
  for (const auto& [reason, count] : summary.documents.skipped) faulty += count;
  DEMAND(summary.documents.documents > 0, "no document holds text: ", summary.documents.empty, " empty documents and ",
         faulty, " faulty lines in ", first, options.documents.inputs.size() > 1 ? " and the other inputs" : "",
         "; there is nothing to train on");
  DEMAND(summary.train.documents > 0, "all ", summary.documents.documents, " documents of ", first,
         " fell into the held-out part; lower held_out (", options.held_out, "), or cut the text into more documents");
}

} // namespace

PrepareSummary prepare(const PrepareOptions& options, const Tokenizer& tokenizer) {
  check(options);
  std::string output = fs::path(options.output).lexically_normal().string();
  while (output.size() > 1 && output.back() == '/') output.pop_back();
  DocumentReader reader(options.documents);
  DocumentEncoder encoder(options, tokenizer);
  AsideFolder folder(output);
  SplitWriter train(folder.path(), "train", options.shard_tokens, tokenizer);
  SplitWriter val(folder.path(), "val", options.shard_tokens, tokenizer);

  std::string_view document;
  for (int64_t index = 0; reader.next(document); ++index) {
    const auto& ids = encoder.encode(document);
    (is_held_out(index, options.seed, options.held_out) ? val : train).add(ids, encoder.text_bytes());
  }
  PrepareSummary summary{reader.counts(), train.finish(), val.finish()};
  demand_documents(summary, options);
  write_file(folder.path() + "/dataset.json", dataset_json(options, summary, tokenizer));
  tokenizer.save(folder.path());
  folder.publish();
  return summary;
}

std::string PrepareSummary::text() const {
  std::ostringstream out;
  out << "documents  " << documents.documents << " (" << documents.text_bytes << " bytes), of them " << documents.blank
      << " blank; left out: " << documents.empty << " empty\n";
  for (const auto& [reason, count] : documents.skipped) out << "skipped    " << count << " lines: " << reason << "\n";
  for (const auto& [name, split] : {std::pair("train", &train), std::pair("val  ", &val)})
    out << name << "      " << split->documents << " documents, " << split->tokens << " tokens, " << split->text_bytes
        << " bytes in " << split->files.size() << " shards\n";
  return out.str();
}

} // namespace triax
