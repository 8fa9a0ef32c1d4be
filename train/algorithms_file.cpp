#include "train/algorithms_file.h"
#include "kernels/check.h"
#include "train/json_file.h"
#include "train/publish.h"
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

namespace triax {
namespace {

using Words = std::map<std::string, std::string>;

Words words_of(const nlohmann::json& whole, const char* key, const std::string& place) {
  DEMAND(whole.is_object() && whole.contains(key) && whole[key].is_object(), place, ": has no object \"", key,
         "\", so it is no file of algorithms");
  Words words;
  for (const auto& [name, value] : whole[key].items()) {
    DEMAND(value.is_string(), place, ": ", key, ": ", name, " is ", shown(value), ", but must be a string");
    words[name] = value.get<std::string>();
  }
  return words;
}

} // namespace

std::string text_of(const Algorithms& algorithms) {
  return nlohmann::ordered_json{{"made_by", algorithms.made_by}, {"chosen", algorithms.chosen}}.dump(1) + "\n";
}

Algorithms parse_algorithms(const std::string& text, const std::string& place) {
  const nlohmann::json whole = parse_json(text, place);
  return {words_of(whole, "made_by", place), words_of(whole, "chosen", place)};
}

Algorithms merged(const std::string& texts, const std::vector<uint64_t>& sizes) {
  Algorithms all;
  size_t begin = 0;
  for (size_t r = 0; r < sizes.size(); begin += sizes[r++]) {
    Algorithms own = parse_algorithms(texts.substr(begin, sizes[r]), concat("rank ", r));
    if (r == 0) all.made_by = own.made_by;
    all.chosen.merge(own.chosen);
  }
  return all;
}

std::string take_algorithms(Transport& transport, const std::string& path, bool wanted) {
  std::string text;
  if (transport.rank() == 0 && (wanted || std::filesystem::exists(path))) text = read_json_file(path).dump();
  transport.broadcast(text, 0);
  if (text.empty()) return "";
  const std::string problem = offer_algorithms(parse_algorithms(text, path));
  return problem.empty() ? "" : concat(path, " is not used, and algorithms are chosen anew: it was ", problem);
}

void save_algorithms(Transport& transport, const std::string& path) {
  if (transport.sum(has_new_algorithms()) == 0) return;
  const std::string text = text_of(algorithms());
  const std::vector<uint64_t> sizes = transport.gather(text.size());
  const auto before = sizes.begin() + transport.rank();
  std::string all(std::accumulate(sizes.begin(), sizes.end(), size_t(0)), '\0');
  std::copy(text.begin(), text.end(), all.begin() + std::ptrdiff_t(std::accumulate(sizes.begin(), before, size_t(0))));
  transport.combine(all.data(), int64_t(all.size()), 0);
  if (transport.rank() == 0) publish_text(path, text_of(merged(all, sizes))); // a pipeline's stages differ in products
  algorithms_are_kept();
}

} // namespace triax
