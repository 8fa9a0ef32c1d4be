// Documents out of text files and JSON lines.
#pragma once
#include "data/file.h"
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace triax {

struct DocumentOptions {
  std::vector<std::string> inputs; ///< `.txt` or `.jsonl` files, read in this order
  /// Between the documents of a `.txt` file, part of none; with every "\n" written "\r\n" it matches too. At a file's
  /// end it starts no further document. Empty: a file is a document.
  std::string separator;
  std::string key = "text"; ///< of the string that is the document, in JSON lines
  bool lenient = false;     ///< faulty lines are counted by reason and left out; otherwise the first one throws
};

struct DocumentCounts {
  int64_t documents = 0; ///< given out
  int64_t blank = 0;     ///< of these, made of white space alone; they are documents like any other
  int64_t empty = 0;     ///< of no bytes: left out
  int64_t text_bytes = 0;
  std::map<std::string, int64_t> skipped; ///< faulty lines by reason (lenient)
};

/// Reads documents one after another. A byte order mark at a file's start and CR before a line end are framing in JSON
/// lines, and so is the mark in text; inside a text they are kept. The text of a `.txt` document is not changed.
/// A fault in JSON lines is named with file, line (from 1) and reason.
class DocumentReader {
public:
  /// Throws for a file that is missing or whose kind is unknown, before anything is read.
  explicit DocumentReader(DocumentOptions options);
  ~DocumentReader();
  /// The next document, or false at the end. The view holds until the next call.
  bool next(std::string_view& document);
  const DocumentCounts& counts() const { return counts_; }

private:
  struct LineParser;
  bool next_text(std::string_view& document);
  bool next_line(std::string_view& document);
  void name_syntax_fault(std::string_view line, bool invalid_utf8, const std::string& refusal);
  void fault(const std::string& reason, const std::string& detail);
  void open_next_file();

  DocumentOptions options_;
  DocumentCounts counts_;
  std::unique_ptr<LineParser> parser_;
  MappedFile file_;
  std::string_view text_; ///< of the open file
  size_t at_ = 0, next_input_ = 0;
  std::array<std::string, 2> separators_;
  std::array<size_t, 2> found_{}; ///< where each separator comes next
  int64_t line_ = 0;
  bool lines_ = false, open_ = false;
};

/// Whether document number `index` (from 0, in reading order) belongs to the held-out part: a keyed hash of the index,
/// below `fraction` of its range.
bool is_held_out(int64_t index, uint64_t seed, double fraction);

} // namespace triax
