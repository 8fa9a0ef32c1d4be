// Cuts text into the pieces inside which byte-pair merges happen.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace triax {

/// The pattern of GPT-2 (Radford et al. 2019, `encoder.py`), triax's default.
extern const char* const kGpt2Pattern;

/// One cut: every match of `pattern` becomes a piece of its own, and so does the text between two matches
/// (Hugging Face's `Split` with behaviour Isolated).
struct Split {
  std::string pattern;
  bool literal = false; ///< the pattern is plain text, not a regular expression
  bool operator==(const Split&) const = default;
};

/// A chain of cuts, each applied to the pieces that the one before left. Bytes that are not UTF-8 are pieces of their
/// own. The concatenation of all pieces is the text. Not for use by two threads at once (PCRE2's match state).
class PreTokenizer {
public:
  /// Throws naming the pattern when it does not compile or can match the empty text.
  explicit PreTokenizer(const std::vector<Split>& splits);
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  /// Calls `piece` for every piece of `text` in order. Needs no machine stack that grows with the text.
  void split(std::string_view text, const std::function<void(std::string_view)>& piece);

private:
  struct Stage;
  void run(size_t stage, std::string_view text, const std::function<void(std::string_view)>& piece);
  std::vector<std::unique_ptr<Stage>> stages_;
};

/// Length of the longest prefix of `text` that is valid UTF-8 (Unicode 15, table 3-7).
size_t valid_utf8_prefix(std::string_view text);

} // namespace triax
