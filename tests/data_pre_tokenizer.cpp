#include "data/pre_tokenizer.h"
#include "tests/helpers.h"
#include <doctest/doctest.h>
#include <thread>

using namespace triax;
using test::error_of;
using test::has;
using Pieces = std::vector<std::string>;

namespace {

const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Pieces cut(const std::vector<Split>& splits, const std::string& text) {
  Pieces out;
  PreTokenizer(splits).split(text, [&](std::string_view piece) { out.emplace_back(piece); });
  return out;
}

} // namespace

TEST_SUITE("data_pre_tokenizer") {
  TEST_CASE("GPT-2's pattern") {
    const std::vector<Split> gpt2 = {{kGpt2Pattern, false}};
    CHECK(cut(gpt2, "Hello, world!  It's 1234\n\n x") ==
          Pieces{"Hello", ",", " world", "!", " ", " It", "'s", " 1234", "\n\n", " x"});
    CHECK(cut(gpt2, "caf\u00e9 \u4f60\u597d\u3002") == Pieces{"caf\u00e9", " \u4f60\u597d", "\u3002"});
    CHECK(cut(gpt2, "").empty());
    CHECK(cut(gpt2, "a\u180eb") == Pieces{"a", "\u180e", "b"}); // not white space since Unicode 6.3
    CHECK(cut(gpt2, "a\u0085\u00a0b") == Pieces{"a", "\u0085", "\u00a0", "b"});
  }

  TEST_CASE("Llama 3's pattern") {
    const std::vector<Split> llama3 = {{kLlama3Pattern, false}};
    CHECK(cut(llama3, "12345 abc's\n\n  x") == Pieces{"123", "45", " abc", "'s", "\n\n", " ", " x"});
    CHECK(cut(llama3, "foo.bar()") == Pieces{"foo", ".bar", "()"});
    CHECK(cut(llama3, "don't DON'T") == Pieces{"don", "'t", " DON", "'T"});
  }

  TEST_CASE("literal and regular expression") {
    const std::string text = "a  b\\s+c";
    CHECK(cut({{"\\s+", true}}, text) == Pieces{"a  b", "\\s+", "c"});
    CHECK(cut({{"\\s+", false}}, text) == Pieces{"a", "  ", "b\\s+c"});
  }

  TEST_CASE("cuts follow one another inside the pieces") {
    CHECK(cut({{"\\p{N}{1,3}", false}, {"b", true}}, "a12345bc") == Pieces{"a", "123", "45", "b", "c"});
    CHECK(cut({}, "a b") == Pieces{"a b"});
  }

  TEST_CASE("bytes that are not UTF-8 stand alone, and nothing is lost") {
    const std::vector<Split> gpt2 = {{kGpt2Pattern, false}};
    CHECK(cut(gpt2, "ab\xff\xfe cd\xc3") == Pieces{"ab", "\xff\xfe", " cd", "\xc3"});
    CHECK(cut(gpt2, "\xed\xa0\x80x") == Pieces{"\xed\xa0\x80", "x"}); // a surrogate
    std::string all;
    for (int i = 0; i < 65536; ++i) all += {static_cast<char>(i >> 8), static_cast<char>(i)};
    std::string joined;
    for (const auto& piece : cut(gpt2, all)) joined += piece;
    CHECK(joined == all);
  }

  TEST_CASE("valid UTF-8") {
    CHECK(valid_utf8_prefix("") == 0);
    CHECK(valid_utf8_prefix("a\u00e9\u4f60\U0001f600") == 10);
    for (const std::string bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xc3", "\xe0\x80\x80", "\xe4\xbd", "\xed\xa0\x80",
                                  "\xf0\x80\x80\x80", "\xf0\x9f\x98", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"})
      CHECK(valid_utf8_prefix("ab" + bad) == 2);
  }

  TEST_CASE("a million characters need no stack, even under a pattern that backtracks") {
    std::string carets(1'000'000, '^'), mixed;
    for (int i = 0; i < 300'000; ++i) mixed += "a1";
    std::thread([&] { // a thread's stack is no larger than the main one's
      CHECK(cut({{kGpt2Pattern, false}}, carets).size() == 1);
      CHECK(cut({{kLlama3Pattern, false}}, carets).size() == 1);
      CHECK(cut({{"(?:a1|a2)+", false}}, mixed).size() == 1);
      CHECK(cut({{kGpt2Pattern, false}}, std::string(1'000'000, ' ')).size() == 1);
      CHECK(cut({{kLlama3Pattern, false}}, std::string(20'000'000, ' ') + "x").size() == 2);
    })
        .join();
  }

  TEST_CASE("patterns that cannot be used are refused") {
    CHECK(has(error_of([] { PreTokenizer({{"a(", false}}); }), "a( does not compile"));
    CHECK(has(error_of([] { PreTokenizer({{"a*", false}}); }), "a* can match empty text"));
    CHECK(has(error_of([] { PreTokenizer({{"", true}}); }), "empty pattern"));
    CHECK(has(error_of([] { PreTokenizer({{"[a[bc]]", false}}); }), "a class inside a class"));
    CHECK(has(error_of([] { PreTokenizer({{"[a-z&&b]", false}}); }), "&& inside a class"));
    CHECK(has(error_of([] { PreTokenizer({{"[\\S]", false}}); }), "\\S inside a class"));
    CHECK(has(error_of([] { PreTokenizer({{"\\h", false}}); }), "\\h"));
  }
}
