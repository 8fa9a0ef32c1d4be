// Training and merging against the slow truth: naive loops over the definition.
#include "data/bpe_train.h"
#include "tests/helpers.h"
#include <algorithm>
#include <ctime>
#include <doctest/doctest.h>
#include <map>
#include <random>

using namespace triax;
using test::error_of;
using test::has;

namespace {

DocumentSource source(const std::vector<std::string>& documents) {
  return [&documents, i = size_t{0}](std::string_view& document) mutable {
    if (i == documents.size()) return false;
    document = documents[i++];
    return true;
  };
}

Tokenizer train(const std::vector<std::string>& documents, int64_t vocab_size, int64_t min_count = 2) {
  return train_bpe(source(documents), {vocab_size, {{kGpt2Pattern, false}}, "<|endoftext|>", min_count});
}

/// The rule of bpe_train.h, recounted from scratch each round.
std::pair<std::vector<std::string>, std::vector<Merge>> naive_train(const std::vector<std::string>& documents,
                                                                    int64_t vocab_size, int64_t min_count) {
  std::vector<std::vector<int32_t>> pieces;
  PreTokenizer cut({{kGpt2Pattern, false}});
  for (const auto& document : documents)
    cut.split(document, [&](std::string_view piece) {
      auto& symbols = pieces.emplace_back();
      for (char c : piece) symbols.push_back(static_cast<unsigned char>(c));
    });
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  std::vector<Merge> merges;
  while (static_cast<int64_t>(tokens.size()) + 1 < vocab_size) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (const auto& p : pieces)
      for (size_t i = 0; i + 1 < p.size(); ++i) ++counts[{p[i], p[i + 1]}];
    std::pair<int32_t, int32_t> best;
    int64_t most = 0;
    for (const auto& [pair, count] : counts)
      if (count >= most) { // the map rises, so of equal counts the last one wins
        best = pair;
        most = count;
      }
    if (most < min_count) break;
    const std::string bytes = tokens[best.first] + tokens[best.second];
    const auto known = std::find(tokens.begin(), tokens.end(), bytes);
    const auto id = static_cast<int32_t>(known - tokens.begin());
    if (known == tokens.end()) tokens.push_back(bytes);
    const Merge merge{best.first, best.second, id};
    if (std::find(merges.begin(), merges.end(), merge) == merges.end()) merges.push_back(merge);
    for (auto& p : pieces) {
      std::vector<int32_t> out;
      for (size_t i = 0; i < p.size(); ++i) {
        const bool here = i + 1 < p.size() && p[i] == best.first && p[i + 1] == best.second;
        out.push_back(here ? id : p[i]);
        i += here;
      }
      p = out;
    }
  }
  tokens.push_back("<|endoftext|>");
  return {tokens, merges};
}

/// Lowest rank first, leftmost first, one merge at a time.
std::vector<int32_t> naive_merge(const std::vector<Merge>& merges, std::vector<int32_t> symbols) {
  std::map<std::pair<int32_t, int32_t>, size_t> rank;
  for (size_t r = 0; r < merges.size(); ++r) rank[{merges[r].left, merges[r].right}] = r;
  while (true) {
    size_t best = merges.size(), at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = rank.find({symbols[i], symbols[i + 1]});
      if (found != rank.end() && found->second < best) {
        best = found->second;
        at = i;
      }
    }
    if (best == merges.size()) return symbols;
    symbols[at] = merges[best].merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

std::string random_text(std::mt19937& random, const std::string& alphabet, size_t length) {
  std::string text;
  for (size_t i = 0; i < length; ++i) text += alphabet[random() % alphabet.size()];
  return text;
}

/// Processor time, which other programs do not lengthen.
double cpu_seconds(const std::function<void()>& f) {
  const std::clock_t start = std::clock();
  f();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

} // namespace

TEST_SUITE("data_bpe") {
  TEST_CASE("the textbook example: merges, ids and repeated letters from the left") {
    const Tokenizer t = train({"aaabdaaabac"}, 256 + 3 + 1);
    CHECK(t.parts().merges == std::vector<Merge>{{97, 97, 256}, {256, 97, 257}, {257, 98, 258}});
    CHECK(t.encode("aaabdaaabac") == std::vector<int32_t>{258, 100, 258, 97, 99});
    CHECK(t.end_of_text() == 259);
    CHECK(t.vocab_size() == 260);

    TokenizerParts one = t.parts();
    one.merges.resize(1);
    const Tokenizer pair(one);
    CHECK(pair.encode("aaa") == std::vector<int32_t>{256, 97});
    CHECK(pair.encode("aaaa") == std::vector<int32_t>{256, 256});
    CHECK(pair.encode("aaaaa") == std::vector<int32_t>{256, 256, 97});
  }

  TEST_CASE("training equals the naive trainer") {
    std::mt19937 random(1);
    for (int round = 0; round < 30; ++round) {
      std::vector<std::string> documents;
      const std::string alphabet = std::string("ab aabc\n'sd\xc3\xa9").substr(0, 2 + static_cast<size_t>(round) % 12);
      for (size_t i = 0; i < 5; ++i) documents.push_back(random_text(random, alphabet, random() % 200));
      documents.push_back("aaaa aaaaaaa ababab");
      const int64_t vocab_size = 257 + static_cast<int64_t>(random() % 120), min_count = 1 + round % 3;
      const auto [tokens, merges] = naive_train(documents, vocab_size, min_count);
      const Tokenizer fast = train(documents, vocab_size, min_count);
      CHECK(fast.parts().merges == merges);
      CHECK(fast.parts().tokens == tokens);
      std::reverse(documents.begin(), documents.end());
      CHECK(train(documents, vocab_size, min_count).hash() == fast.hash());
    }
  }

  TEST_CASE("encoding equals the naive merge, short and long, and decodes to the same bytes") {
    std::mt19937 random(2);
    std::vector<std::string> documents;
    for (int i = 0; i < 30; ++i) documents.push_back(random_text(random, "abcde", 300));
    const Tokenizer t = train(documents, 600);
    CHECK(t.vocab_size() == 600);
    Encoder encoder(t);
    for (size_t length : {1, 2, 3, 7, 23, 24, 25, 26, 60, 127, 128, 129, 500}) {
      for (const std::string alphabet : {"a", "ab", "abcde", "abcde\xff\x80"}) {
        const std::string text = random_text(random, alphabet, length);
        std::vector<int32_t> bytes, expected, found;
        PreTokenizer cut(t.parts().splits);
        cut.split(text, [&](std::string_view piece) {
          bytes.clear();
          for (char c : piece) bytes.push_back(static_cast<unsigned char>(c));
          const auto ids = naive_merge(t.parts().merges, bytes);
          expected.insert(expected.end(), ids.begin(), ids.end());
        });
        encoder.encode(text, found);
        CHECK(found == expected);
        CHECK(t.encode(text) == expected);
        CHECK(t.decode(found) == text);
      }
    }
  }

  TEST_CASE("the piece cache gives what merging gives, also after it was emptied") {
    std::mt19937 random(3);
    const Tokenizer t = train({random_text(random, "abcdefgh ", 4000)}, 400);
    Encoder warm(t);
    const std::string text = random_text(random, "abcdefgh ", 2000);
    std::vector<int32_t> first, again;
    warm.encode(text, first);
    for (int i = 0; i < 300; ++i) { // more distinct pieces than it keeps
      std::string filler;
      for (int j = 0; j < 1000; ++j) filler += " " + std::to_string(i * 1000 + j);
      std::vector<int32_t> ids;
      warm.encode(filler, ids);
    }
    warm.encode(text, again);
    CHECK(first == t.encode(text));
    CHECK(again == first);
  }

  TEST_CASE("time stays near linear in one piece") {
    const Tokenizer t = train({std::string(4096, 'a'), std::string(4096, ' '), std::string(4, '^'),
                               std::string(4096, '\n'), "the quick brown fox jumps over the lazy dog"},
                              300);
    const auto time = [&](const std::string& text) {
      return cpu_seconds([&] { CHECK(t.decode(t.encode(text)) == text); });
    };
    const double once = time(std::string(100'000, 'a')), twice = time(std::string(200'000, 'a'));
    CHECK(twice < std::max(3.5 * once, 0.1)); // a quadratic merge takes 4 times as long, and minutes
    std::mt19937 random(4);
    for (const std::string& text :
         {random_text(random, "abcdefghijklmnopqrstuvwxyz", 100'000), std::string(1'000'000, ' '),
          std::string(100'000, '\n'), std::string(1'000'000, '^')})
      CHECK(time(text) < 20);
    std::string carets;
    for (int i = 0; i < 500'000; ++i) carets += " ^";
    CHECK(t.decode(t.encode(carets)) == carets);
  }

  TEST_CASE("a corpus too small gives a smaller vocabulary, impossible options a sentence") {
    CHECK(train({"ab"}, 1000).vocab_size() == 257);
    CHECK(train({"abab"}, 1000).vocab_size() == 258);
    CHECK(has(error_of([] { train({"ab"}, 256); }), "at least 257 and at most 16777216 entries; 256 were"));
    CHECK(has(error_of([] { train({"ab"}, 300, 0); }), "min_count is 0"));
    CHECK(has(error_of([] { train({}, 300); }), "no text to train"));
    CHECK(has(error_of([] { train({""}, 300); }), "no text to train"));
  }

  TEST_CASE("no merge gives the text of the end-of-text token") {
    const std::vector<std::string> documents(10, "<end>");
    const Tokenizer t = train_bpe(source(documents), {400, {}, "<end>", 2});
    const auto ids = t.encode("<end>");
    CHECK(std::count(ids.begin(), ids.end(), *t.end_of_text()) == 0);
    CHECK(t.decode(ids) == "<end>");
  }
}
