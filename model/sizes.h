// Named models, with the shapes their authors published.
#pragma once
#include "model/config.h"
#include <string>
#include <vector>

namespace triax {

struct NamedSize {
  const char* name;
  ModelConfig config;
};

/// All named models, smallest first inside each family. Every one passes `validate`.
const std::vector<NamedSize>& named_sizes();

/// The named model, or a sentence with the nearest name and the whole list.
const ModelConfig& named_size(const std::string& name);

/// The candidate with the smallest edit distance (insert, delete, replace, swap of neighbours) to `word`; empty when
/// even that one differs in more than a third of its letters (at least 2).
std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates);

} // namespace triax
