#include "data/bpe_train.h"
#include "data/file.h"
#include "data/tokenizer_json.h"
#include "tests/helpers.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

using namespace triax;
using nlohmann::json;
using test::error_of;
using test::has;
using test::TemporaryFolder;

namespace {

Tokenizer trained(int64_t vocab_size = 320) {
  bool given = false;
  return train_bpe(
      [&](std::string_view& document) {
        document = "the cat and the hat and the bat sat on the mat, and that was that: the end. ^^^^^^^^ \n\n\n\n";
        return !std::exchange(given, true);
      },
      {vocab_size, {{kGpt2Pattern, false}}, "<|endoftext|>", 2});
}

json trained_json() { return json::parse(tokenizer_json(trained().parts())); }

Tokenizer load(const json& root, const std::string& config = "") {
  TemporaryFolder folder;
  write_file(folder / "tokenizer.json", root.dump());
  if (!config.empty()) write_file(folder / "tokenizer_config.json", config);
  return Tokenizer::load(folder / "tokenizer.json");
}

/// The sentence that loading a changed tokenizer.json throws.
std::string refusal(const std::function<void(json&)>& change, const std::string& config = "") {
  json root = trained_json();
  change(root);
  return error_of([&] { load(root, config); });
}

json split(const char* kind, const char* pattern) {
  return {{"type", "Split"}, {"pattern", {{kind, pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

const json kByteLevel = {
    {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};

json sequence(std::vector<json> list) { return {{"type", "Sequence"}, {"pretokenizers", list}}; }

} // namespace

TEST_SUITE("data_tokenizer") {
  TEST_CASE("every byte string decodes to itself") {
    const Tokenizer t = trained();
    for (const std::string text :
         {"", " ", "   leading", "\t\tx", "\n\n  y", "i love borzois! \U0001F415", "\xff\xfe\x80", "\xef\xbb\xbf bom",
          "before <|endoftext|> after", "\u0130\u00df\ufb01"})
      CHECK(t.decode(t.encode(text)) == text);
    CHECK(t.encode("").empty());
    std::string all(256, '\0');
    std::iota(all.begin(), all.end(), '\0');
    CHECK(t.decode(t.encode(all)) == all);
  }

  TEST_CASE("token lengths are true bytes") {
    const Tokenizer t = trained();
    CHECK(t.token_bytes(0x80) == 1);
    CHECK(t.decode(std::vector<int32_t>{0x80}) == "\x80");
    CHECK(t.token_bytes(*t.end_of_text()) == 0);
    int64_t bytes = 0;
    for (int32_t id : t.encode("i love borzois! \U0001F415")) bytes += t.token_bytes(id);
    CHECK(bytes == 20);
    CHECK(has(error_of([&] { t.token_bytes(99999); }), "id 99999 is outside"));
    CHECK(has(error_of([&] { t.decode(std::vector<int32_t>{-1}); }), "id -1 is outside"));
  }

  TEST_CASE("special text is ordinary text unless it is to be parsed") {
    const Tokenizer t = trained();
    const int32_t end = *t.end_of_text();
    const std::string text = "before <|endoftext|> after<|endoftext|>";
    auto ids = t.encode(text);
    CHECK(std::count(ids.begin(), ids.end(), end) == 0);
    CHECK(t.decode(ids) == text);
    ids = t.encode(text, true);
    CHECK(std::count(ids.begin(), ids.end(), end) == 2);
    CHECK(ids.back() == end);
    CHECK(t.decode(ids) == text);
  }

  TEST_CASE("of added tokens that start together the longest is parsed") {
    json root = trained_json();
    const int64_t n = trained().vocab_size();
    for (const char* text : {"<a>", "<a><b>", "<b>"})
      root["added_tokens"].push_back({{"id", n + static_cast<int64_t>(root["added_tokens"].size()) - 1},
                                      {"content", text},
                                      {"special", std::string(text) != "<b>"}});
    const Tokenizer t = load(root);
    CHECK(t.vocab_size() == n + 3);
    const auto first = static_cast<int32_t>(n);
    CHECK(t.encode("<a><b><b><a>", true) == std::vector<int32_t>{first + 1, first + 2, first});
    CHECK(t.token_bytes(first) == 0);
    CHECK(t.token_bytes(first + 2) == 3); // not special: it stands for its text
  }

  TEST_CASE("saved and loaded is the same tokenizer, and a loaded file is saved as it was") {
    TemporaryFolder folder;
    const Tokenizer t = trained();
    t.save(folder / "");
    const Tokenizer back = Tokenizer::load(folder / "");
    CHECK(back.hash() == t.hash());
    CHECK(back.parts().merges == t.parts().merges);
    CHECK(back.parts().tokens == t.parts().tokens);
    CHECK(back.parts().splits == t.parts().splits);
    CHECK(back.end_of_text() == t.end_of_text());
    CHECK(trained(264).hash() != t.hash());

    const std::string spaced = json::parse(read_file(folder / "tokenizer.json")).dump(4);
    write_file(folder / "tokenizer.json", spaced);
    TemporaryFolder other;
    const Tokenizer again = Tokenizer::load(folder / "tokenizer.json");
    again.save(other / "");
    CHECK(again.hash() == t.hash());
    CHECK(read_file(other / "tokenizer.json") == spaced);
    CHECK(read_file(other / "tokenizer_config.json") == read_file(folder / "tokenizer_config.json"));
  }

  TEST_CASE("merges as pairs and as strings, vocabulary in any order") {
    json root = trained_json();
    const uint64_t hash = trained().hash();
    CHECK(load(root).hash() == hash);
    for (json& merge : root["model"]["merges"]) {
      const std::string both = merge;
      merge = {both.substr(0, both.find(' ')), both.substr(both.find(' ') + 1)};
    }
    CHECK(load(root).hash() == hash);
  }

  TEST_CASE("ignore_merges takes a whole piece as its token") {
    json root = trained_json();
    root["model"]["vocab"]["xyz"] = 5000;
    CHECK(load(root).encode("xyz") == std::vector<int32_t>{'x', 'y', 'z'});
    root["model"]["ignore_merges"] = true;
    CHECK(load(root).encode("xyz") == std::vector<int32_t>{5000});
    CHECK(has(error_of([&] { load(root).decode(std::vector<int32_t>{4000}); }), "id 4000 stands for no token"));
  }

  TEST_CASE("pre-tokenizers in Hugging Face's forms") {
    json root = trained_json();
    root["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
    CHECK(load(root).hash() == trained().hash());
    root["pre_tokenizer"] = sequence({split("String", "\\s+"), kByteLevel});
    CHECK(load(root).parts().splits == std::vector<Split>{{"\\s+", true}});
    root["pre_tokenizer"] = sequence({split("Regex", "\\s+"), kByteLevel});
    CHECK(load(root).parts().splits == std::vector<Split>{{"\\s+", false}});
    root["post_processor"] = kByteLevel;
    CHECK(load(root).vocab_size() == trained().vocab_size());
  }

  TEST_CASE("the end-of-text token comes from tokenizer_config.json, or from its usual names") {
    json root = trained_json();
    const auto n = static_cast<int32_t>(trained().vocab_size());
    root["added_tokens"].push_back({{"id", n}, {"content", "<stop>"}, {"special", true}});
    CHECK(load(root).end_of_text() == n - 1);
    CHECK(load(root, R"({"eos_token": "<stop>"})").end_of_text() == n);
    CHECK(load(root, R"({"eos_token": {"content": "<stop>"}, "bos_token": "<|endoftext|>"})").begin_of_text() == n - 1);
    CHECK(has(refusal([](json&) {}, R"({"eos_token": "<none>"})"), "gives eos_token \"<none>\""));
    root["added_tokens"] = json::array();
    root["model"]["vocab"].erase("<|endoftext|>");
    CHECK(!load(root).end_of_text());
  }

  TEST_CASE("what is not supported is refused by name, with the file") {
    const auto refused = [](const std::function<void(json&)>& change, const std::string& name) {
      const std::string sentence = refusal(change);
      INFO(sentence);
      CHECK(has(sentence, "tokenizer.json: " + name + " is not supported"));
    };
    refused([](json& j) { j["normalizer"] = {{"type", "NFC"}}; }, "normalizer NFC");
    refused(
        [](json& j) {
          j["post_processor"] = {{"type", "TemplateProcessing"}};
        },
        "post_processor TemplateProcessing");
    refused([](json& j) { j["decoder"] = {{"type", "WordPiece"}}; }, "decoder WordPiece");
    refused([](json& j) { j["decoder"] = nullptr; }, "decoder null");
    refused([](json& j) { j["model"]["type"] = "Unigram"; }, "model Unigram");
    refused([](json& j) { j["model"]["byte_fallback"] = true; }, "model.byte_fallback true");
    refused([](json& j) { j["model"]["dropout"] = 0.1; }, "model.dropout 0.1");
    refused([](json& j) { j["model"]["continuing_subword_prefix"] = "##"; }, "model.continuing_subword_prefix \"##\"");
    refused([](json& j) { j["pre_tokenizer"] = nullptr; }, "pre_tokenizer null");
    refused([](json& j) { j["pre_tokenizer"] = {{"type", "Whitespace"}}; }, "pre_tokenizer Whitespace");
    refused([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; },
            "pre_tokenizer Split with behavior Removed");
    refused([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; },
            "pre_tokenizer Split with invert");
    refused([](json& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; },
            "pre_tokenizer ByteLevel with add_prefix_space");
    refused([](json& j) { j["pre_tokenizer"]["pretokenizers"].erase(1); },
            "pre_tokenizer Split without ByteLevel after it");
    refused([](json& j) { j["added_tokens"][0]["lstrip"] = true; }, "added token <|endoftext|> with lstrip");
    // Falcon's four parts: nothing of it may be passed over in silence.
    refused(
        [](json& j) {
          j["pre_tokenizer"] = sequence({{{"type", "Punctuation"}, {"behavior", "Contiguous"}},
                                         kByteLevel,
                                         {{"type", "Digits"}, {"individual_digits", false}},
                                         split("Regex", "[0-9][0-9][0-9]")});
        },
        "pre_tokenizer Punctuation");
    refused(
        [](json& j) {
          j["pre_tokenizer"] = sequence({kByteLevel, split("Regex", "a")});
        },
        "pre_tokenizer ByteLevel before others");
  }

  TEST_CASE("damaged files") {
    CHECK(has(refusal([](json& j) { j["model"]["vocab"].erase("Z"); }), "no token for byte 90"));
    CHECK(has(refusal([](json& j) { j["model"]["merges"].push_back("q zz"); }),
              "names \"zz\", which is not in the vocab"));
    CHECK(has(refusal([](json& j) { j["model"]["merges"].push_back("q z"); }),
              "names \"qz\", which is not in the vocab"));
    CHECK(has(refusal([](json& j) { j["model"]["merges"].push_back("qz"); }), "does not hold two tokens"));
    CHECK(has(refusal([](json& j) { j["model"]["merges"].push_back({"q"}); }), "does not hold two tokens"));
    CHECK(has(refusal([](json& j) { j["model"]["vocab"]["qq"] = 7; }), "two tokens have the id 7"));
    CHECK(has(refusal([](json& j) { j["model"]["vocab"]["qq"] = -7; }), "id -7, which is outside"));
    CHECK(has(refusal([](json& j) { j["model"]["vocab"]["a b"] = 700; }), "not written in the byte-level alphabet"));
    CHECK(has(refusal([](json& j) { j["model"].erase("vocab"); }), "is not a tokenizer in Hugging Face's form"));
    CHECK(has(refusal([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "("; }), "compile"));
    TemporaryFolder folder;
    write_file(folder / "tokenizer.json", "{");
    CHECK(has(error_of([&] { Tokenizer::load(folder / ""); }), "is not a tokenizer in Hugging Face's form"));
    CHECK(has(error_of([&] { Tokenizer::load(folder / "missing"); }), "there is no tokenizer at"));
  }

  TEST_CASE("one tokenizer serves several threads") {
    const Tokenizer t = trained();
    const auto expected = t.encode("the cat and the hat");
    std::vector<std::thread> threads;
    std::atomic<int> same = 0;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&] { same += t.encode("the cat and the hat") == expected; });
    for (auto& thread : threads) thread.join();
    CHECK(same == 4);
  }
}
