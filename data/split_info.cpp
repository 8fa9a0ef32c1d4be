#include "data/split_info.h"
#include "kernels/check.h"
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace triax {

SplitInfo split_info(const std::string& folder, const std::string& split) {
  const std::string path = (std::filesystem::path(folder) / "dataset.json").string();
  std::ifstream file(path);
  DEMAND(file, path, " cannot be read; data.folder must be a folder made by `triax data prepare`");
  const auto json = nlohmann::json::parse(file, nullptr, false);
  SplitInfo info;
  try {
    const auto& s = json.at("splits").at(split);
    info.tokens = s.at("tokens").get<int64_t>();
    for (const auto& shard : s.at("shards")) info.identity += shard.at("content_hash").get<std::string>() + " ";
  } catch (const nlohmann::json::exception&) {
    fail(concat(path, " is damaged: splits.", split,
                " must hold tokens and shards with their content_hash; prepare the data again"));
  }
  return info;
}

} // namespace triax
