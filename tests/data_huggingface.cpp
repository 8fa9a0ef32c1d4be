// Agreement with Hugging Face's `tokenizers`: what it wrote is read here and gives the same ids. The exchange with the
// living package is tests/check_tokenizer.py.
#include "data/bpe_train.h"
#include "data/file.h"
#include "data/tokenizer_json.h"
#include <cstdlib>
#include <doctest/doctest.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

using namespace triax;

namespace {

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

} // namespace

TEST_SUITE("data_huggingface") {
  TEST_CASE("a tokenizer that the package trained and wrote gives the package's ids") {
    const std::string folder = TRIAX_SOURCE_DIR "/tests/fixtures/tokenizer/";
    const Tokenizer tokenizer = Tokenizer::load(folder);
    const auto fixture = nlohmann::json::parse(read_file(folder + "ids.json"));
    CHECK(fixture.at("texts").size() > 100);
    for (const auto& entry : fixture.at("texts")) {
      const std::string text = entry.at("text");
      const auto ids = tokenizer.encode(text);
      CHECK(ids == entry.at("ids").get<std::vector<int32_t>>());
      CHECK(tokenizer.decode(ids) == text);
    }
    // Written anew, not copied, it is still the same tokenizer.
    const std::string written = tokenizer_json(tokenizer.parts());
    CHECK(Tokenizer(parse_tokenizer_json("written", written, "")).hash() == tokenizer.hash());
  }

  // Run by tests/check_tokenizer.py alone. Trains on the file TRAIN with VOCAB entries and saves to FOLDER if TRAIN is
  // set; then encodes the lines of TEXTS (hexadecimal) with FOLDER's tokenizer to the file IDS.
  TEST_CASE("exchange" * doctest::skip()) {
    const std::string folder = environment("FOLDER"), train = environment("TRAIN");
    if (!train.empty()) {
      const std::string text = read_file(train);
      BpeTrainOptions options;
      options.vocab_size = std::atoll(environment("VOCAB"));
      const auto source = [&, given = false](std::string_view& document) mutable {
        document = text;
        return !std::exchange(given, true);
      };
      train_bpe(source, options).save(folder);
    }
    const Tokenizer tokenizer = Tokenizer::load(folder);
    std::istringstream texts(read_file(environment("TEXTS")));
    std::ofstream out(environment("IDS"));
    Encoder encoder(tokenizer);
    for (std::string line; std::getline(texts, line);) {
      std::vector<int32_t> ids;
      const std::string text = from_hex(line);
      encoder.encode(text, ids);
      CHECK(tokenizer.decode(ids) == text);
      for (int32_t id : ids) out << id << ' ';
      out << '\n';
    }
  }
}
