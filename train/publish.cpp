#include "train/publish.h"
#include "data/file.h"
#include "kernels/check.h"
#include "train/json_file.h"
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include <xxhash.h>

namespace triax {

namespace fs = std::filesystem;
using json = nlohmann::json;

namespace {

constexpr const char* kAside = ".tmp-";    // being written
constexpr const char* kReplaced = ".old-"; // on its way out, where folders cannot be exchanged

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

/// "step_00000010.tmp-123" -> "step_00000010"; empty when `name` has no such ending.
std::string stem_before(const std::string& name, const char* mark) {
  const size_t at = name.rfind(mark);
  if (at == std::string::npos || at == 0) return "";
  const std::string process = name.substr(at + std::strlen(mark));
  const bool number = !process.empty() && process.find_first_not_of("0123456789") == std::string::npos;
  return number ? name.substr(0, at) : "";
}

void rename_or_throw(const std::string& from, const std::string& to) {
  DEMAND(std::rename(from.c_str(), to.c_str()) == 0, "cannot rename ", from, " to ", to, ": ", std::strerror(errno));
}

/// False where the file system cannot exchange two names (some network file systems).
bool exchange_names(const std::string& a, const std::string& b) {
  if (renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  DEMAND(errno == EINVAL || errno == ENOSYS || errno == ENOTSUP, "cannot exchange ", a, " and ", b, ": ",
         std::strerror(errno));
  return false;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code absent;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, absent))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string check_file(const std::string& path, const json& entry, bool hashes) {
  std::error_code absent;
  const auto bytes = fs::file_size(path, absent);
  if (absent) return concat(path, " is missing");
  if (entry.at("bytes") != bytes) return concat(path, " has ", bytes, " bytes, not ", shown(entry.at("bytes")));
  if (!hashes) return "";
  const MappedFile file(path);
  const json& expected = entry.at("xxh3");
  const int64_t blocks = (file.size() + HashedFile::kBlock - 1) / HashedFile::kBlock;
  if (int64_t(expected.size()) != blocks) return concat(path, " has ", blocks, " blocks, not ", expected.size());
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t start = block * HashedFile::kBlock, count = std::min(HashedFile::kBlock, file.size() - start);
    if (expected.at(size_t(block)) != hex64(XXH3_64bits(file.data() + start, size_t(count))))
      return concat(path, " is damaged in its bytes ", start, " to ", start + count);
  }
  return "";
}

} // namespace

Publication::Publication(const std::string& path, int64_t needed) {
  path_ = fs::path(path).has_filename() ? path : fs::path(path).parent_path().string(); // without a last slash
  DEMAND(fs::path(path_).has_filename(), "cannot publish \"", path, "\": it names no folder");
  std::error_code error;
  DEMAND(!exists(path_) || fs::is_directory(path_, error), "cannot publish ", path_, ": a file of that name is there");
  const std::string parent = parent_of(path_);
  fs::create_directories(parent, error);
  DEMAND(!error, "cannot make the folder ", parent, ": ", error.message());
  const fs::space_info space = fs::space(parent, error);
  DEMAND(error || int64_t(space.available) >= needed, "cannot write ", path_, ": it needs ", needed, " bytes, but ",
         space.available, " bytes are free");
  aside_ = path_ + kAside + std::to_string(getpid());
  fs::remove_all(aside_, error);
  fs::create_directory(aside_, error);
  DEMAND(!error, "cannot make the folder ", aside_, ": ", error.message());
}

Publication::~Publication() {
  if (published_) return;
  files_.clear();
  std::error_code ignored;
  fs::remove_all(aside_, ignored);
}

HashedFile& Publication::create(const std::string& name, int64_t expected) {
  ENSURE(!published_, path_, " is published");
  ENSURE(!name.empty() && name.find('/') == std::string::npos && !files_.count(name), "a second or nested file ", name);
  return *(files_[name] = std::make_unique<HashedFile>(aside_ + "/" + name, expected));
}

void Publication::write_text(const std::string& name, const std::string& text) {
  HashedFile& file = create(name, int64_t(text.size()));
  file.write(text.data(), int64_t(text.size()));
  file.close();
}

void Publication::copy(const std::string& name, const std::string& source) { write_text(name, read_file(source)); }

void Publication::write_manifest() {
  json files = json::object();
  for (const auto& [name, file] : files_) {
    json hashes = json::array();
    for (const uint64_t hash : file->hashes()) hashes.push_back(hex64(hash));
    files[name] = {{"bytes", file->bytes()}, {"xxh3", std::move(hashes)}};
  }
  write_text(kManifest, json{{"block", HashedFile::kBlock}, {"files", std::move(files)}}.dump(1) + "\n");
}

void Publication::publish() {
  ENSURE(!published_, path_, " is published");
  for (const auto& [name, file] : files_) file->close();
  write_manifest();
  sync_folder(aside_);
  replace_folder(aside_, path_);
  published_ = true;
  sync_folder(parent_of(path_));
}

void replace_folder(const std::string& from, const std::string& to, bool exchange) {
  std::error_code error;
  if (!exists(to)) {
    rename_or_throw(from, to);
  } else if (exchange && exchange_names(from, to)) {
    fs::remove_all(from, error); // now the old one; `clean_leftovers` takes what resists
  } else {
    const std::string replaced = to + kReplaced + std::to_string(getpid());
    fs::remove_all(replaced, error);
    rename_or_throw(to, replaced);
    rename_or_throw(from, to);
    fs::remove_all(replaced, error);
  }
}

void publish_text(const std::string& path, const std::string& text) {
  const std::string aside = path + kAside + std::to_string(getpid());
  try {
    HashedFile file(aside, int64_t(text.size()));
    file.write(text.data(), int64_t(text.size()));
    file.close();
    rename_or_throw(aside, path);
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove(aside, ignored);
    throw;
  }
  sync_folder(parent_of(path));
}

std::vector<std::string> clean_leftovers(const std::string& folder) {
  std::vector<std::string> found;
  for (const std::string& name : names_in(folder)) {
    const std::string path = folder + "/" + name;
    const std::string replaced = stem_before(name, kReplaced);
    if (replaced.empty() && stem_before(name, kAside).empty()) continue;
    if (!replaced.empty() && !exists(folder + "/" + replaced)) {
      rename_or_throw(path, folder + "/" + replaced);
    } else {
      std::error_code error;
      fs::remove_all(path, error);
      DEMAND(!error, "cannot remove ", path, ", left by a killed run: ", error.message());
    }
    found.push_back(name);
  }
  return found;
}

std::string check_published(const std::string& folder, bool hashes) {
  const std::string path = folder + "/" + Publication::kManifest;
  if (!exists(path)) return concat(folder, " has no ", Publication::kManifest);
  try {
    const json manifest = read_json_file(path);
    if (manifest.at("block") != HashedFile::kBlock) return concat(path, " has blocks of another size");
    for (const auto& [name, entry] : manifest.at("files").items())
      if (const std::string wrong = check_file(folder + "/" + name, entry, hashes); !wrong.empty()) return wrong;
  } catch (const Error& error) {
    return error.what();
  } catch (const json::exception&) {
    return concat(path, " is no manifest");
  }
  return "";
}

std::string step_name(int64_t step) {
  const std::string digits = std::to_string(step);
  return "step_" + std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0') + digits;
}

std::vector<std::pair<int64_t, std::string>> step_folders(const std::string& folder) {
  std::vector<std::pair<int64_t, std::string>> found;
  for (const std::string& name : names_in(folder)) {
    const std::string digits = name.rfind("step_", 0) == 0 ? name.substr(5) : "";
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code ignored;
    const int64_t step = std::stoll(digits);
    if (step_name(step) == name && fs::is_directory(folder + "/" + name, ignored))
      found.emplace_back(step, folder + "/" + name);
  }
  std::sort(found.begin(), found.end());
  return found;
}

Newest newest_complete(const std::string& folder) {
  Newest newest;
  auto steps = step_folders(folder);
  for (auto step = steps.rbegin(); step != steps.rend() && !newest.path; ++step) {
    const std::string wrong = check_published(step->second, false);
    if (wrong.empty())
      newest.path = step->second, newest.step = step->first;
    else
      newest.notes.push_back(concat("the checkpoint ", step->second, " is passed over: ", wrong));
  }
  return newest;
}

} // namespace triax
