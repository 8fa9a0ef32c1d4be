// Hugging Face `tokenizer.json` and `tokenizer_config.json`: model BPE over bytes.
#pragma once
#include "data/tokenizer.h"
#include <string>

namespace triax {

/// Read: normalizer null; pre_tokenizer ByteLevel, or Sequence of Split (Isolated, Regex or String) and ByteLevel;
/// post_processor null or ByteLevel; decoder ByteLevel; merges as pairs or as strings. All else is refused by name.
/// `path`: the file, for messages. `config`: text of `tokenizer_config.json`, or empty.
TokenizerParts parse_tokenizer_json(const std::string& path, std::string json, std::string config);

/// The text of `tokenizer.json`: tokens in the order of their ids, merges as strings (older readers know no other
/// form).
std::string tokenizer_json(const TokenizerParts& parts);
/// The text of `tokenizer_config.json`.
std::string tokenizer_config_json(const TokenizerParts& parts);

} // namespace triax
