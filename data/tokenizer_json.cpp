#include "data/tokenizer_json.h"
#include "kernels/check.h"
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>

namespace triax {
namespace {

using nlohmann::json;

constexpr int64_t kLargestVocabulary = 1 << 24;

std::string utf8(uint32_t c) {
  if (c < 0x80) return {static_cast<char>(c)};
  return {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
}

/// GPT-2's alphabet: the character that stands for each byte in a vocabulary (`bytes_to_unicode` in its encoder.py).
const std::array<std::string, 256>& byte_alphabet() {
  static const auto alphabet = [] {
    std::array<std::string, 256> out;
    uint32_t spare = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      out[b] = utf8(itself ? b : spare++);
    }
    return out;
  }();
  return alphabet;
}

std::string to_alphabet(const std::string& bytes) {
  std::string out;
  for (char c : bytes) out += byte_alphabet()[static_cast<unsigned char>(c)];
  return out;
}

/// The bytes that `text` stands for; false when a character is outside the alphabet.
bool from_alphabet(const std::string& text, std::string& bytes) {
  static const auto back = [] {
    std::unordered_map<std::string, char> map;
    for (int b = 0; b < 256; ++b) map[byte_alphabet()[b]] = static_cast<char>(b);
    return map;
  }();
  bytes.clear();
  for (size_t i = 0; i < text.size();) {
    const size_t length = static_cast<unsigned char>(text[i]) < 0x80 ? 1 : 2;
    const auto found = back.find(text.substr(i, length));
    if (found == back.end()) return false;
    bytes += found->second;
    i += length;
  }
  return true;
}

/// Reads one file; every refusal names it.
class Reader {
public:
  Reader(const std::string& path, const json& root) : path_(path), root_(root) {}

  TokenizerParts read() {
    const json normalizer = root_.value("normalizer", json());
    refuse_unless(normalizer.is_null(), "normalizer", normalizer);
    read_post_processor();
    read_decoder();
    const json& model = root_.at("model");
    check_model(model);
    read_added();
    read_vocab(model.at("vocab"));
    read_merges(model.at("merges"));
    parts_.ignore_merges = model.value("ignore_merges", false);
    const json pre = root_.value("pre_tokenizer", json());
    refuse_unless(!pre.is_null(), "pre_tokenizer", pre);
    read_pre_tokenizer(pre, true);
    return std::move(parts_);
  }

private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(concat(path_, ": ", what,
                " is not supported; triax reads byte-level BPE (pre_tokenizer ByteLevel, or Split and "
                "ByteLevel in a Sequence, no normalizer)"));
  }
  void refuse_unless(bool supported, const std::string& name, const json& value) const {
    if (supported) return;
    const bool typed = value.is_object() && value.contains("type");
    refuse(name + " " + (typed ? value.at("type").get<std::string>() : value.dump().substr(0, 200)));
  }

  void check_model(const json& model) const {
    refuse_unless(model.value("type", "BPE") == "BPE", "model", model);
    const auto unset = [&](const char* key) {
      const json value = model.value(key, json());
      const bool zero = value.is_number() && value.get<double>() == 0;
      refuse_unless(value.is_null() || value == "" || value == false || zero, std::string("model.") + key, value);
    };
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) unset(key);
  }

  /// ByteLevel's post-processor moves offsets only, never ids.
  void read_post_processor() const {
    const json post = root_.value("post_processor", json());
    refuse_unless(post.is_null() || post.at("type") == "ByteLevel", "post_processor", post);
  }
  void read_decoder() const {
    const json decoder = root_.value("decoder", json());
    refuse_unless(decoder.is_object() && decoder.at("type") == "ByteLevel", "decoder", decoder);
  }

  void read_added() {
    for (const json& token : root_.value("added_tokens", json::array())) {
      const std::string text = token.at("content");
      for (const char* key : {"single_word", "lstrip", "rstrip"})
        if (token.value(key, false)) refuse("added token " + text + " with " + key);
      const int64_t id = checked_id(token.at("id"), text);
      DEMAND(!text.empty(), path_, ": added token ", id, " has no content");
      parts_.added.push_back({static_cast<int32_t>(id), text, token.value("special", false)});
    }
  }

  int64_t checked_id(const json& value, const std::string& text) const {
    const int64_t id = value.get<int64_t>();
    DEMAND(id >= 0 && id < kLargestVocabulary, path_, ": token ", text, " has the id ", id, ", which is outside 0..",
           kLargestVocabulary - 1);
    return id;
  }

  void put(int64_t id, const std::string& bytes) {
    if (static_cast<size_t>(id) >= parts_.tokens.size()) parts_.tokens.resize(static_cast<size_t>(id) + 1);
    std::string& slot = parts_.tokens[static_cast<size_t>(id)];
    DEMAND(slot.empty() || slot == bytes, path_, ": two tokens have the id ", id);
    slot = bytes;
  }

  void read_vocab(const json& vocab) {
    std::unordered_map<int64_t, std::string> added;
    for (const AddedToken& token : parts_.added) {
      put(token.id, token.text);
      added[token.id] = token.text;
    }
    std::string bytes;
    for (const auto& [text, value] : vocab.items()) {
      const int64_t id = checked_id(value, text);
      if (const auto found = added.find(id); found != added.end() && found->second == text) continue;
      DEMAND(!text.empty() && from_alphabet(text, bytes), path_, ": token ", id, ", \"", text,
             "\", is not written in the byte-level alphabet");
      put(id, bytes);
      ids_[text] = static_cast<int32_t>(id);
    }
  }

  int32_t id_of(const std::string& token, size_t rank) const {
    const auto found = ids_.find(token);
    DEMAND(found != ids_.end(), path_, ": merge ", rank, " names \"", token, "\", which is not in the vocabulary");
    return found->second;
  }

  void read_merges(const json& merges) {
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      std::string left, right;
      if (merges[rank].is_array()) {
        DEMAND(merges[rank].size() == 2, path_, ": merge ", rank, " does not hold two tokens");
        left = merges[rank][0];
        right = merges[rank][1];
      } else {
        const std::string both = merges[rank];
        const size_t space = both.find(' ');
        DEMAND(space != std::string::npos, path_, ": merge ", rank, ", \"", both, "\", does not hold two tokens");
        left = both.substr(0, space);
        right = both.substr(space + 1);
      }
      parts_.merges.push_back({id_of(left, rank), id_of(right, rank), id_of(left + right, rank)});
    }
  }

  /// `last`: whether ByteLevel may stand here; nothing may follow it.
  void read_pre_tokenizer(const json& pre, bool last) {
    const std::string type = pre.at("type");
    if (type == "Sequence") {
      const json& list = pre.at("pretokenizers");
      refuse_unless(last && !list.empty(), "pre_tokenizer", pre);
      for (size_t i = 0; i < list.size(); ++i) read_pre_tokenizer(list[i], i + 1 == list.size());
    } else if (type == "Split") {
      if (last) refuse("pre_tokenizer Split without ByteLevel after it");
      read_split(pre);
    } else if (type == "ByteLevel") {
      if (!last) refuse("pre_tokenizer ByteLevel before others");
      if (pre.value("add_prefix_space", true)) refuse("pre_tokenizer ByteLevel with add_prefix_space");
      if (pre.value("use_regex", true)) parts_.splits.push_back({kGpt2Pattern, false});
    } else {
      refuse_unless(false, "pre_tokenizer", pre);
    }
  }

  void read_split(const json& pre) {
    const json& pattern = pre.at("pattern");
    const std::string behavior = pre.at("behavior");
    if (behavior != "Isolated") refuse("pre_tokenizer Split with behavior " + behavior);
    if (pre.value("invert", false)) refuse("pre_tokenizer Split with invert");
    const bool literal = pattern.contains("String");
    if (!literal && !pattern.contains("Regex")) refuse("pre_tokenizer Split with pattern " + pattern.dump());
    parts_.splits.push_back({pattern.at(literal ? "String" : "Regex").get<std::string>(), literal});
  }

  std::string path_;
  const json& root_;
  TokenizerParts parts_;
  std::unordered_map<std::string, int32_t> ids_;
};

std::optional<int32_t> added_id(const TokenizerParts& parts, const std::string& text) {
  for (const AddedToken& token : parts.added)
    if (token.text == text) return token.id;
  return std::nullopt;
}

/// The token that `tokenizer_config.json` gives for `key`, as a string or as an object with `content`.
std::optional<int32_t> configured(const TokenizerParts& parts, const json& config, const char* key,
                                  const std::string& path) {
  json value = config.value(key, json());
  if (value.is_object()) value = value.value("content", json());
  if (!value.is_string()) return std::nullopt;
  const auto id = added_id(parts, value);
  DEMAND(id, "tokenizer_config.json beside ", path, " gives ", key, " ", value.dump(),
         ", which is not among the added_tokens of ", path);
  return id;
}

json split_json(const Split& split) {
  return {{"type", "Split"},
          {"pattern", {{split.literal ? "String" : "Regex", split.pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

} // namespace

TokenizerParts parse_tokenizer_json(const std::string& path, std::string text, std::string config_text) {
  try {
    const json root = json::parse(text);
    TokenizerParts parts = Reader(path, root).read();
    const json config = config_text.empty() ? json::object() : json::parse(config_text);
    parts.end_of_text = configured(parts, config, "eos_token", path);
    parts.begin_of_text = configured(parts, config, "bos_token", path);
    for (const char* usual : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"})
      if (!parts.end_of_text) parts.end_of_text = added_id(parts, usual);
    parts.json = std::move(text);
    parts.config = std::move(config_text);
    return parts;
  } catch (const json::exception& error) {
    fail(concat(path,
                " (or tokenizer_config.json beside it) is not a tokenizer in Hugging Face's form: ", error.what()));
  }
}

std::string tokenizer_json(const TokenizerParts& parts) {
  json added = json::array();
  std::vector<bool> is_added(parts.tokens.size());
  for (const AddedToken& token : parts.added) {
    is_added[token.id] = true;
    added.push_back({{"id", token.id},
                     {"content", token.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", token.special}});
  }
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  json sequence = json::array();
  for (const Split& split : parts.splits) sequence.push_back(split_json(split));
  sequence.push_back(byte_level);

  // By hand where order matters and size is large: tokens by id, one a line, which people read and diff.
  std::string out = "{\n\"version\": \"1.0\",\n\"truncation\": null,\n\"padding\": null,\n\"added_tokens\": ";
  out += added.dump() + ",\n\"normalizer\": null,\n\"pre_tokenizer\": ";
  out += json{{"type", "Sequence"}, {"pretokenizers", sequence}}.dump();
  out += ",\n\"post_processor\": null,\n\"decoder\": " + byte_level.dump() + ",\n\"model\": {\n";
  out += "\"type\": \"BPE\",\n\"dropout\": null,\n\"unk_token\": null,\n\"continuing_subword_prefix\": null,\n"
         "\"end_of_word_suffix\": null,\n\"fuse_unk\": false,\n\"byte_fallback\": false,\n\"ignore_merges\": ";
  out += std::string(parts.ignore_merges ? "true" : "false") + ",\n\"vocab\": {";
  const char* comma = "\n";
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    if (parts.tokens[id].empty()) continue;
    const std::string text = is_added[id] ? parts.tokens[id] : to_alphabet(parts.tokens[id]);
    out += comma + json(text).dump() + ": " + std::to_string(id);
    comma = ",\n";
  }
  out += "\n},\n\"merges\": [";
  comma = "\n";
  for (const Merge& merge : parts.merges) {
    out += comma + json(to_alphabet(parts.tokens[merge.left]) + " " + to_alphabet(parts.tokens[merge.right])).dump();
    comma = ",\n";
  }
  return out + "\n]\n}\n}\n";
}

std::string tokenizer_config_json(const TokenizerParts& parts) {
  json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false},
                 {"model_max_length", 1'000'000'000}};
  if (parts.end_of_text) config["eos_token"] = parts.tokens[*parts.end_of_text];
  if (parts.begin_of_text) config["bos_token"] = parts.tokens[*parts.begin_of_text];
  return config.dump(2) + "\n";
}

} // namespace triax
