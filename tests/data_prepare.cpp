#include "data/bpe_train.h"
#include "data/dataset.h"
#include "data/prepare.h"
#include "tests/helpers.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace triax;
using test::error_of;
using test::has;
using test::TemporaryFolder;
namespace fs = std::filesystem;

namespace {

using Texts = std::vector<std::string>;

Texts read_all(DocumentReader& reader) {
  Texts out;
  std::string_view document;
  while (reader.next(document)) out.emplace_back(document);
  return out;
}

Texts documents(const std::string& file, const std::string& separator = "", bool lenient = false) {
  DocumentReader reader({{file}, separator, "text", lenient});
  return read_all(reader);
}

/// Bytes and an end-of-text token: 257 entries, so that ids can be read by eye. With a begin-of-text token: 258.
Tokenizer bytes_tokenizer(bool begin = false) {
  TokenizerParts parts;
  for (int b = 0; b < 256; ++b) parts.tokens.emplace_back(1, static_cast<char>(b));
  parts.tokens.push_back("<|endoftext|>");
  parts.added.push_back({256, "<|endoftext|>", true});
  parts.end_of_text = 256;
  parts.splits = {{kGpt2Pattern, false}};
  if (begin) {
    parts.tokens.push_back("<s>");
    parts.added.push_back({257, "<s>", true});
    parts.begin_of_text = 257;
  }
  return Tokenizer(parts);
}

std::vector<int32_t> ids_of(const std::string& shard_path) {
  const Shard shard = Shard::open(shard_path);
  std::vector<int32_t> ids(static_cast<size_t>(shard.tokens()));
  shard.read(0, shard.tokens(), int64_t{1} << 31, ids.data());
  return ids;
}

PrepareOptions options(const TemporaryFolder& folder, const std::string& input, double held_out = 0) {
  PrepareOptions out;
  out.documents.inputs = {input};
  out.output = folder / "out";
  out.held_out = held_out;
  return out;
}

/// The ids of the one train shard made of a `.jsonl` file with this content.
std::vector<int32_t> prepared(
    const std::string& content, const Tokenizer& tokenizer,
    const std::function<void(PrepareOptions&)>& change = [](PrepareOptions&) {}) {
  TemporaryFolder folder;
  write_file(folder / "a.jsonl", content);
  PrepareOptions o = options(folder, folder / "a.jsonl");
  change(o);
  prepare(o, tokenizer);
  return ids_of(folder / "out/train_00000.shard");
}

} // namespace

TEST_SUITE("data_prepare") {
  TEST_CASE("framing of JSON lines is not text: byte order mark, CR, the end of the file") {
    TemporaryFolder folder;
    const std::string file = folder / "a.jsonl";
    for (const std::string content :
         {"{\"text\":\"a\"}\n{\"text\":\"b\"}\n", "{\"text\":\"a\"}\n{\"text\":\"b\"}",
          "\xef\xbb\xbf{\"text\":\"a\"}\r\n{\"text\":\"b\"}\r\n", "{\"text\":\"a\"}\r\n{\"text\":\"b\"}"}) {
      write_file(file, content);
      CHECK(documents(file) == Texts{"a", "b"});
      CHECK(prepared(content, bytes_tokenizer()) == std::vector<int32_t>{'a', 256, 'b', 256});
    }
    write_file(file, "{\"id\":1,\"text\":\"\xef\xbb\xbfx\\r\\n\\u0000\\ud83d\\ude00\"}\n");
    CHECK(documents(file) == Texts{std::string("\xef\xbb\xbfx\r\n\0\U0001f600", 12).substr(0, 11)});
  }

  TEST_CASE("faulty lines: strict names file, line and reason; lenient counts them") {
    TemporaryFolder folder;
    const std::string file = folder / "a.jsonl", good = "{\"text\":\"good\"}\n";
    const std::vector<std::pair<std::string, std::string>> faults = {
        {"{\"text\":\"a\"}{\"text\":\"b\"}", "more than one value on a line"},
        {"{\"text\":\"c\"", "cut off"},
        {"{\"text\":\"c", "cut off"},
        {"[]", "not an object"},
        {"5", "not an object"},
        {"{\"txt\":\"d\"}", "no key"},
        {"{\"text\":5}", "not a string"},
        {"", "empty line"},
        {"\r", "empty line"},
        {"{\"text\":\"\xff\"}", "invalid UTF-8"},
        {"{\"text\":\"\\ud800\"}", "not JSON"},
        {"{'text':1}", "not JSON"}};
    std::string everything = good;
    for (const auto& fault : faults) {
      const auto& [line, reason] = fault;
      write_file(file, good + good + line + "\n" + good);
      const std::string sentence = error_of([&] { documents(file); });
      INFO(fault.first);
      CHECK(has(sentence, file + ", line 3: " + reason));
      CHECK(has(sentence, "lenient"));
      everything += line + "\n" + good;
    }
    write_file(file, everything);
    DocumentReader reader({{file}, "", "text", true});
    CHECK(read_all(reader) == Texts(faults.size() + 1, "good"));
    CHECK(reader.counts().skipped == std::map<std::string, int64_t>{{"more than one value on a line", 1},
                                                                    {"cut off", 2},
                                                                    {"not an object", 2},
                                                                    {"no key", 1},
                                                                    {"not a string", 1},
                                                                    {"empty line", 2},
                                                                    {"invalid UTF-8", 1},
                                                                    {"not JSON", 2}});
    write_file(file, "{\"body\":\"x\"}\n");
    DocumentReader other({{file}, "", "body", false});
    CHECK(read_all(other) == Texts{"x"});
  }

  TEST_CASE("documents of plain text") {
    TemporaryFolder folder;
    const std::string file = folder / "a.txt";
    const auto cut = [&](const std::string& content, const std::string& separator) {
      write_file(file, content);
      return documents(file, separator);
    };
    CHECK(cut("a\n\nb\n\n", "") == Texts{"a\n\nb\n\n"});
    CHECK(cut("a\n\nb\n\nc", "\n\n") == Texts{"a", "b", "c"});
    CHECK(cut("a\n\nb\n\n", "\n\n") == Texts{"a", "b"});
    CHECK(cut("a\r\n\r\nb\r\nc\r\n\r\nd\n\ne", "\n\n") == Texts{"a", "b\r\nc", "d", "e"});
    CHECK(cut("\xef\xbb\xbf"
              "a\fb\xff\xef\xbb\xbf",
              "\f") == Texts{"a", "b\xff\xef\xbb\xbf"});
    CHECK(cut("", "\n").empty());
    CHECK(cut("\n\n", "\n").empty());
    write_file(file, "\n\nx\n\n \n");
    DocumentReader reader({{file, file}, "\n", "text", false});
    CHECK(read_all(reader) == Texts{"x", " ", "x", " "});
    CHECK(reader.counts().empty == 6);
    CHECK(reader.counts().blank == 2);
    CHECK(reader.counts().text_bytes == 4);
  }

  TEST_CASE("files that cannot be read") {
    TemporaryFolder folder;
    write_file(folder / "a.pdf", "x");
    CHECK(has(error_of([&] { documents(folder / "a.pdf"); }), "a.pdf has the extension \".pdf\""));
    CHECK(has(error_of([&] { documents(folder / "missing.txt"); }), "cannot read"));
    fs::create_directory(folder / "b.txt");
    CHECK(has(error_of([&] { documents(folder / "b.txt"); }), "not a regular file"));
    CHECK(has(error_of([] { DocumentReader reader(DocumentOptions{}); }), "no input files"));
  }

  TEST_CASE("empty documents are dropped and counted, blank ones stay") {
    TemporaryFolder folder;
    write_file(folder / "e.jsonl",
               "{\"text\":\"\"}\n{\"text\":\"hello world\"}\n{\"text\":\"   \"}\n{\"text\":\"\"}\n");
    const Tokenizer t = bytes_tokenizer();
    const PrepareSummary summary = prepare(options(folder, folder / "e.jsonl"), t);
    CHECK(summary.documents.documents == 2);
    CHECK(summary.documents.empty == 2);
    CHECK(summary.documents.blank == 1);
    CHECK(has(summary.text(), "documents  2 (14 bytes), of them 1 blank; left out: 2 empty"));
    const auto ids = ids_of(folder / "out/train_00000.shard");
    CHECK(std::count(ids.begin(), ids.end(), 256) == 2);
    CHECK(t.decode(ids) == "hello world<|endoftext|>   <|endoftext|>");
    const Shard shard = Shard::open(folder / "out/train_00000.shard");
    CHECK(shard.document_offset(1) == 12);
    CHECK(shard.document_offset(2) == 16);
    CHECK(shard.header().text_bytes == 14);
    shard.verify();
  }

  TEST_CASE("a corpus without text is refused and nothing is written") {
    TemporaryFolder folder;
    for (const std::string content : {"", "{\"text\":\"\"}\n{\"text\":\"\"}\n"}) {
      write_file(folder / "e.jsonl", content);
      const std::string sentence = error_of([&] { prepare(options(folder, folder / "e.jsonl"), bytes_tokenizer()); });
      CHECK(has(sentence, "no document holds text: "));
      CHECK(has(sentence, "e.jsonl"));
      CHECK(!fs::exists(folder / "out"));
      CHECK(!fs::exists(folder / "out.partial"));
    }
  }

  TEST_CASE("a fault in the middle leaves nothing behind, and an output that exists is left alone") {
    TemporaryFolder folder;
    write_file(folder / "a.jsonl", "{\"text\":\"a\"}\nx\n");
    const PrepareOptions o = options(folder, folder / "a.jsonl");
    CHECK(has(error_of([&] { prepare(o, bytes_tokenizer()); }), "line 2: not JSON"));
    CHECK(!fs::exists(folder / "out"));
    CHECK(!fs::exists(folder / "out.partial"));
    fs::create_directory(folder / "out.partial"); // of a run that was killed
    write_file(folder / "a.jsonl", "{\"text\":\"a\"}\n");
    prepare(o, bytes_tokenizer());
    CHECK(!fs::exists(folder / "out.partial"));
    CHECK(has(error_of([&] { prepare(o, bytes_tokenizer()); }), "exists already"));
  }

  TEST_CASE("marks at a document's ends: each setting, each text, exactly one or none") {
    const std::string content = "{\"text\":\"a\"}\n{\"text\":\"<s>b\"}\n{\"text\":\"c<|endoftext|>\"}\n";
    const Tokenizer t = bytes_tokenizer(true);
    for (bool begin : {false, true})
      for (bool end : {false, true})
        for (bool parse : {false, true}) {
          const auto ids = prepared(content, t, [&](PrepareOptions& o) {
            o.begin_of_text = begin;
            o.end_of_text = end;
            o.parse_added = parse;
          });
          const int64_t begins = begin ? 3 : parse ? 1 : 0, ends = end ? 3 : parse ? 1 : 0;
          CHECK(std::count(ids.begin(), ids.end(), 257) == begins);
          CHECK(std::count(ids.begin(), ids.end(), 256) == ends);
        }
    CHECK(has(error_of([&] { prepared(content, bytes_tokenizer(), [](auto& o) { o.begin_of_text = true; }); }),
              "has no begin-of-text token"));
    TokenizerParts parts = bytes_tokenizer().parts();
    parts.end_of_text.reset();
    CHECK(has(error_of([&] { prepared(content, Tokenizer(parts)); }), "has no end-of-text token"));
  }

  TEST_CASE("held-out documents, several shards, the folder") {
    TemporaryFolder folder;
    std::string content;
    Texts texts;
    for (int i = 0; i < 1000; ++i) {
      texts.push_back("document " + std::to_string(i));
      content += nlohmann::json{{"text", texts.back()}}.dump() + "\n";
    }
    write_file(folder / "a.jsonl", content);
    PrepareOptions o = options(folder, folder / "a.jsonl", 0.1);
    o.shard_tokens = 2000;
    o.seed = 7;
    const Tokenizer t = bytes_tokenizer();
    const PrepareSummary summary = prepare(o, t);
    CHECK(summary.train.documents + summary.val.documents == 1000);
    CHECK(summary.val.documents > 60);
    CHECK(summary.val.documents < 140);
    CHECK(summary.train.files.size() > 3);
    std::string train, val, all_train, all_val;
    for (int64_t i = 0; i < 1000; ++i)
      (is_held_out(i, 7, 0.1) ? val : train) += texts[static_cast<size_t>(i)] + "<|endoftext|>";
    for (const auto& file : summary.train.files) {
      CHECK(Shard::open(folder / ("out/" + file)).tokens() <= 2000);
      all_train += t.decode(ids_of(folder / ("out/" + file)));
    }
    for (const auto& file : summary.val.files) all_val += t.decode(ids_of(folder / ("out/" + file)));
    CHECK(all_train == train);
    CHECK(all_val == val);
    CHECK(Tokenizer::load(folder / "out").hash() == t.hash());
    const auto listing = nlohmann::json::parse(read_file(folder / "out/dataset.json"));
    CHECK(listing["splits"]["train"]["tokens"] == summary.train.tokens);
    CHECK(listing["tokenizer_hash"] == hex64(t.hash()));

    const Dataset data = Dataset::open({folder / "out", {}, "train", 64, 1, true, 257});
    CHECK(data.tokens() == summary.train.tokens);
    CHECK(data.documents() == summary.train.documents);
    CHECK(data.text_bytes() == summary.train.text_bytes);
    CHECK(data.tokenizer_hash() == t.hash());

    o.output = folder / "again";
    prepare(o, t);
    for (const auto& entry : fs::directory_iterator(folder / "out"))
      CHECK(read_file(entry.path().string()) == read_file(folder / ("again/" + entry.path().filename().string())));
  }

  TEST_CASE("a document longer than a shard is a shard of its own") {
    TemporaryFolder folder;
    write_file(folder / "a.txt", "aaa|bbbbbbbbbb|c|d");
    PrepareOptions o = options(folder, folder / "a.txt");
    o.documents.separator = "|";
    o.shard_tokens = 5;
    const auto summary = prepare(o, bytes_tokenizer());
    CHECK(summary.train.files == Texts{"train_00000.shard", "train_00001.shard", "train_00002.shard"});
    CHECK(summary.train.shards[1].tokens == 11);
  }

  TEST_CASE("impossible options") {
    TemporaryFolder folder;
    write_file(folder / "a.txt", "a");
    PrepareOptions o = options(folder, folder / "a.txt");
    const auto refusal = [&] { return error_of([&] { prepare(o, bytes_tokenizer()); }); };
    o.held_out = 1;
    CHECK(has(refusal(), "held_out is 1"));
    o.held_out = 0.999999999;
    CHECK(has(refusal(), "all 1 documents"));
    o.held_out = 0;
    o.shard_tokens = 0;
    CHECK(has(refusal(), "shard_tokens is 0"));
    o.shard_tokens = 1;
    o.output = "";
    CHECK(has(refusal(), "no output folder"));
    o.output = folder / "a.txt";
    CHECK(has(refusal(), "exists already"));
    o.output = folder / "a.txt/out";
    CHECK(has(refusal(), "cannot make folder"));
  }
}
