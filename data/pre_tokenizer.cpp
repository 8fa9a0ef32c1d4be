#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/pre_tokenizer.h"
#include "kernels/check.h"
#include <cstdint>
#include <pcre2.h>
#include <utility>

namespace triax {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

constexpr size_t kJitStackStart = 64 << 10, kJitStackMost = 256 << 20;
/// Steps of one match: a pattern may step back once over each character of a long run, but not for ever.
constexpr uint32_t kMatchLimit = 1 << 30;

std::string pcre2_message(int code) {
  unsigned char text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

/// The pattern in PCRE2's words. Files of tokenizers mean Oniguruma's, which differ in a few: white space leaves out
/// U+180E (not white space since Unicode 6.3), written here as a class so that it is the same everywhere; nested and
/// intersected classes and \h (a hexadecimal digit) have no counterpart and are refused rather than misread.
std::string to_pcre2(const std::string& pattern) {
  const std::string space = R"(\p{Z}\x{09}-\x{0d}\x{85})";
  std::string out;
  bool in_class = false;
  const auto refuse = [&](const char* what) {
    fail(concat("the pre-tokenizer's pattern ", pattern, " holds ", what, ", which is not supported"));
  };
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i], next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\' && next) {
      ++i;
      if (next == 'h' || next == 'H') refuse("\\h or \\H");
      if (next == 'S' && in_class) refuse("\\S inside a class");
      if (next == 's')
        out += in_class ? space : "[" + space + "]";
      else if (next == 'S')
        out += "[^" + space + "]";
      else
        out += {c, next};
      continue;
    }
    if (in_class && c == '[') refuse("a class inside a class");
    if (in_class && c == '&' && next == '&') refuse("&& inside a class");
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

} // namespace

struct PreTokenizer::Stage {
  std::string literal;
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  std::string pattern;
  bool jit = false;

  explicit Stage(const Split& split);
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  ~Stage() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
  void compile();
  /// The next match in text[from, end); false when there is none.
  bool find(std::string_view text, size_t from, size_t& begin, size_t& end);
};

PreTokenizer::Stage::Stage(const Split& split) : pattern(split.pattern) {
  DEMAND(!pattern.empty(), "the pre-tokenizer holds an empty pattern");
  if (split.literal)
    literal = pattern;
  else
    compile();
}

void PreTokenizer::Stage::compile() {
  const std::string source = to_pcre2(pattern);
  int error = 0;
  size_t at = 0;
  code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                       PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  DEMAND(code, "the pre-tokenizer's pattern ", pattern, " does not compile: ", pcre2_message(error));
  uint32_t empty = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty);
  const bool refused = empty != 0;
  if (refused) pcre2_code_free(std::exchange(code, nullptr));
  DEMAND(!refused, "the pre-tokenizer's pattern ", pattern, " can match empty text; such patterns are not supported");
  jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0; // without executable memory matching is slower and the same
  match = pcre2_match_data_create_from_pattern(code, nullptr);
  context = pcre2_match_context_create(nullptr);
  stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr);
  ENSURE(match && context && stack, "no memory for the pre-tokenizer");
  pcre2_jit_stack_assign(context, nullptr, stack);
  pcre2_set_match_limit(context, kMatchLimit);
}

bool PreTokenizer::Stage::find(std::string_view text, size_t from, size_t& begin, size_t& end) {
  if (!code) {
    begin = text.find(literal, from);
    end = begin + literal.size();
    return begin != std::string_view::npos;
  }
  const auto call = jit ? pcre2_jit_match : pcre2_match; // the former leaves out checks that the latter makes each time
  const int rc = call(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, jit ? 0 : PCRE2_NO_UTF_CHECK,
                      match, context);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  DEMAND(rc > 0, "the pre-tokenizer's pattern ", pattern, " fails at byte ", from, " of a text of ", text.size(),
         " bytes: ", pcre2_message(rc));
  const size_t* bounds = pcre2_get_ovector_pointer(match);
  begin = bounds[0];
  end = bounds[1];
  // \K and look-behind can move a match's start; what was given out already is not given again.
  DEMAND(begin >= from && end > begin, "the pre-tokenizer's pattern ", pattern, " matches no text at byte ", from);
  return true;
}

PreTokenizer::PreTokenizer(const std::vector<Split>& splits) {
  for (const Split& split : splits) stages_.push_back(std::make_unique<Stage>(split));
}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

void PreTokenizer::run(size_t stage, std::string_view text, const std::function<void(std::string_view)>& piece) {
  if (text.empty()) return;
  if (stage == stages_.size()) return piece(text);
  size_t at = 0, begin = 0, end = 0;
  while (at < text.size() && stages_[stage]->find(text, at, begin, end)) {
    run(stage + 1, text.substr(at, begin - at), piece);
    run(stage + 1, text.substr(begin, end - begin), piece);
    at = end;
  }
  run(stage + 1, text.substr(at), piece);
}

void PreTokenizer::split(std::string_view text, const std::function<void(std::string_view)>& piece) {
  while (!text.empty()) {
    const size_t valid = valid_utf8_prefix(text);
    run(0, text.substr(0, valid), piece);
    text.remove_prefix(valid);
    size_t bad = 0;
    while (bad < text.size() && valid_utf8_prefix(text.substr(bad, 4)) == 0) ++bad;
    if (bad > 0) piece(text.substr(0, bad));
    text.remove_prefix(bad);
  }
}

size_t valid_utf8_prefix(std::string_view text) {
  const auto* s = reinterpret_cast<const unsigned char*>(text.data());
  const size_t n = text.size();
  const auto tail = [&](size_t i, unsigned low = 0x80, unsigned high = 0xbf) {
    return i < n && s[i] >= low && s[i] <= high;
  };
  size_t i = 0;
  while (i < n) {
    const unsigned c = s[i];
    size_t length = 0;
    if (c < 0x80)
      length = 1;
    else if (c >= 0xc2 && c <= 0xdf)
      length = tail(i + 1) ? 2 : 0;
    else if (c >= 0xe0 && c <= 0xef)
      length = tail(i + 1, c == 0xe0 ? 0xa0 : 0x80, c == 0xed ? 0x9f : 0xbf) && tail(i + 2) ? 3 : 0;
    else if (c >= 0xf0 && c <= 0xf4)
      length = tail(i + 1, c == 0xf0 ? 0x90 : 0x80, c == 0xf4 ? 0x8f : 0xbf) && tail(i + 2) && tail(i + 3) ? 4 : 0;
    if (length == 0) return i;
    i += length;
  }
  return n;
}

} // namespace triax
