#include "data/documents.h"
#include "data/permutation.h"
#include "kernels/check.h"
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <simdjson.h>

namespace triax {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos; }

std::string extension(const std::string& path) { return std::filesystem::path(path).extension().string(); }

} // namespace

/// simdjson wants its input padded: lines are copied to a buffer that is.
struct DocumentReader::LineParser {
  simdjson::dom::parser parser;
  std::string buffer;

  simdjson::simdjson_result<simdjson::dom::element> parse(std::string_view line) {
    buffer.assign(line);
    buffer.resize(line.size() + simdjson::SIMDJSON_PADDING);
    return parser.parse(buffer.data(), line.size(), false);
  }
};

DocumentReader::DocumentReader(DocumentOptions options)
    : options_(std::move(options)), parser_(std::make_unique<LineParser>()) {
  DEMAND(!options_.inputs.empty(), "no input files were named; give .txt or .jsonl files");
  for (const std::string& path : options_.inputs) {
    const std::string kind = extension(path);
    DEMAND(kind == ".txt" || kind == ".jsonl", path, " has the extension \"", kind,
           "\"; .txt (plain text) and .jsonl (a JSON object a line) are read");
    MappedFile can_be_read(path);
  }
  separators_[0] = options_.separator;
  for (char c : options_.separator) separators_[1] += c == '\n' ? std::string("\r\n") : std::string(1, c);
}
DocumentReader::~DocumentReader() = default;

void DocumentReader::open_next_file() {
  const std::string& path = options_.inputs[next_input_++];
  file_ = MappedFile(path);
  text_ = file_.bytes();
  lines_ = extension(path) == ".jsonl";
  at_ = text_.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  line_ = 0;
  open_ = true;
  for (int i = 0; i < 2; ++i)
    found_[i] = separators_[i].empty() ? std::string_view::npos : text_.find(separators_[i], at_);
}

bool DocumentReader::next(std::string_view& document) {
  while (true) {
    if (!open_) {
      if (next_input_ == options_.inputs.size()) return false;
      open_next_file();
    }
    if (!(lines_ ? next_line(document) : next_text(document))) {
      open_ = false;
      continue;
    }
    if (document.empty()) {
      ++counts_.empty;
      continue;
    }
    ++counts_.documents;
    counts_.blank += is_blank(document);
    counts_.text_bytes += static_cast<int64_t>(document.size());
    return true;
  }
}

/// The document that starts at `at_`. A file without a byte of text is one empty document.
bool DocumentReader::next_text(std::string_view& document) {
  if (at_ > text_.size()) return false;
  const int first = found_[0] <= found_[1] ? 0 : 1;
  if (found_[first] == std::string_view::npos) {
    document = text_.substr(at_);
    at_ = text_.size() + 1;
    return true;
  }
  document = text_.substr(at_, found_[first] - at_);
  at_ = found_[first] + separators_[first].size();
  for (int i = 0; i < 2; ++i)
    if (found_[i] != std::string_view::npos && found_[i] < at_) found_[i] = text_.find(separators_[i], at_);
  if (at_ == text_.size()) ++at_; // the separator ended the file
  return true;
}

/// The document of the next line without fault; false at the end of the file.
bool DocumentReader::next_line(std::string_view& document) {
  while (at_ < text_.size()) {
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    std::string_view line = text_.substr(at_, end - at_);
    at_ = end + 1;
    ++line_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (is_blank(line)) {
      fault("empty line", "the line holds no JSON object");
      continue;
    }
    const auto parsed = parser_->parse(line);
    if (parsed.error()) {
      name_syntax_fault(line, parsed.error() == simdjson::UTF8_ERROR, simdjson::error_message(parsed.error()));
      continue;
    }
    simdjson::dom::object object;
    simdjson::dom::element value;
    if (parsed.get_object().get(object)) {
      fault("not an object", "a line must be an object, like {\"" + options_.key + "\": \"...\"}");
    } else if (object.at_key(options_.key).get(value)) {
      fault("no key", "the object has no key \"" + options_.key + "\"");
    } else if (value.get_string().get(document)) {
      fault("not a string", "the value of \"" + options_.key + "\" is not a string");
    } else {
      return true;
    }
  }
  return false;
}

/// Finds words for a line that simdjson refused; the slower parser says where and what it expected.
void DocumentReader::name_syntax_fault(std::string_view line, bool invalid_utf8, const std::string& refusal) {
  if (invalid_utf8) return fault("invalid UTF-8", "the line is not valid UTF-8");
  std::string detail = refusal;
  try {
    [[maybe_unused]] const auto accepted = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    detail = error.what();
    detail = detail.substr(detail.find("] ") == std::string::npos ? 0 : detail.find("] ") + 2);
  }
  const auto says = [&](const char* words) { return detail.find(words) != std::string::npos; };
  if (says("unexpected end of input") || says("missing closing quote")) return fault("cut off", detail);
  if (says("expected end of input")) return fault("more than one value on a line", detail);
  fault("not JSON", detail);
}

void DocumentReader::fault(const std::string& reason, const std::string& detail) {
  DEMAND(options_.lenient, file_.path(), ", line ", line_, ": ", reason, ": ", detail,
         " (mend the line, or leave faulty lines out with the lenient flag)");
  ++counts_.skipped[reason];
}

bool is_held_out(int64_t index, uint64_t seed, double fraction) {
  return static_cast<double>(mix64(seed, static_cast<uint64_t>(index)) >> 11) * 0x1p-53 < fraction;
}

} // namespace triax
