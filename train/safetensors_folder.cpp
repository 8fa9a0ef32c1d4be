// Several safetensors files as one: read through an index, written with one.
#include "kernels/check.h"
#include "model/sizes.h"
#include "train/json_file.h"
#include "train/safetensors.h"
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

namespace triax {

namespace fs = std::filesystem;
using json = nlohmann::json;

namespace {

constexpr const char* kEnding = ".safetensors";

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

/// Names of STEM*.safetensors, sorted.
std::vector<std::string> files_of(const std::string& folder, const std::string& stem) {
  std::vector<std::string> names;
  std::error_code absent;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, absent)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(stem, 0) == 0 && entry.path().extension() == kEnding) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

constexpr size_t kNamesShown = 8;

/// weight_map of an index: tensor -> file beside the index.
std::map<std::string, std::string> read_index(const std::string& path) {
  const json index = read_json_file(path);
  DEMAND(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(), path,
         ": has no object \"weight_map\"");
  std::map<std::string, std::string> map;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    DEMAND(file.is_string(), path, ": the file of tensor \"", tensor, "\" is ", shown(file), ", but must be a name");
    const std::string name = file.get<std::string>();
    const bool plain = !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
                       name.find('\0') == std::string::npos;
    DEMAND(plain, path, ": the file of tensor \"", tensor, "\" is \"", name,
           "\", but must be a name inside the index's own folder");
    map[tensor] = name;
  }
  return map;
}

} // namespace

SafetensorsFolder::SafetensorsFolder(const std::string& folder, const std::string& stem) : folder_(folder) {
  const std::string single = stem + kEnding, index = single + ".index.json";
  if (is_file(folder + "/" + index)) {
    open_index(folder + "/" + index);
  } else {
    DEMAND(fs::is_directory(folder), folder, ": is no folder");
    const auto parts = files_of(folder, stem);
    DEMAND(is_file(folder + "/" + single), folder, ": has neither ", single, " nor ", index,
           parts.empty() ? "" : ", though parts of one: " + listed(parts, kNamesShown),
           is_file(folder + "/pytorch_model.bin") ? "; its pytorch_model.bin must first be saved as safetensors" : "");
    files_.emplace_back(folder + "/" + single);
    for (const StoredTensor& tensor : files_[0].tensors()) tensors_[tensor.name] = &tensor;
  }
  note_strays(stem);
}

void SafetensorsFolder::open_index(const std::string& path) {
  const auto map = read_index(path);
  std::set<std::string> wanted;
  for (const auto& [tensor, file] : map) wanted.insert(file);
  std::vector<std::string> absent;
  for (const std::string& file : wanted)
    if (!is_file(folder_ + "/" + file)) absent.push_back(file);
  DEMAND(absent.empty(), path, ": ", absent.size(),
         absent.size() == 1 ? " file that it names is" : " files that it names are",
         " missing: ", listed(absent, 1000));
  std::map<std::string, size_t> opened;
  for (const std::string& file : wanted) {
    opened[file] = files_.size();
    files_.emplace_back(folder_ + "/" + file);
  }
  for (const auto& [tensor, file] : map) {
    const StoredTensor* stored = files_[opened[file]].find(tensor);
    DEMAND(stored, path, ": tensor \"", tensor, "\" is not in ", file, ", where the index puts it");
    tensors_[tensor] = stored;
  }
  for (const SafetensorsFile& file : files_) {
    std::vector<std::string> extra;
    for (const StoredTensor& tensor : file.tensors())
      if (const auto found = tensors_.find(tensor.name); found == tensors_.end() || found->second != &tensor)
        extra.push_back(tensor.name);
    if (!extra.empty())
      notes_.push_back(
          concat(file.path(), ": left aside, since the index does not name them: ", listed(extra, kNamesShown)));
  }
}

void SafetensorsFolder::note_strays(const std::string& stem) {
  std::vector<std::string> strays;
  for (const std::string& name : files_of(folder_, stem)) {
    const bool used = std::any_of(files_.begin(), files_.end(),
                                  [&](const SafetensorsFile& file) { return file.path() == folder_ + "/" + name; });
    if (!used) strays.push_back(name);
  }
  if (!strays.empty())
    notes_.push_back(concat(folder_, ": left aside, since nothing refers to them: ", listed(strays, kNamesShown)));
}

std::vector<std::string> SafetensorsFolder::names() const {
  std::vector<std::string> all;
  for (const auto& [name, tensor] : tensors_) all.push_back(name);
  return all;
}

const StoredTensor* SafetensorsFolder::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

const StoredTensor& SafetensorsFolder::at(const std::string& name) const {
  const StoredTensor* tensor = find(name);
  if (tensor) return *tensor;
  const std::string nearest = nearest_name(name, names());
  fail(
      concat(folder_, ": has no tensor \"", name, "\"", nearest.empty() ? "" : "; the nearest is \"" + nearest + "\""));
}

const std::map<std::string, std::string>& SafetensorsFolder::metadata() const {
  static const std::map<std::string, std::string> none;
  return files_.empty() ? none : files_[0].metadata();
}

struct SafetensorsWriter::Part {
  std::string name;
  std::vector<TensorHeader> tensors;
  int64_t bytes = 0; ///< of its tensors
  std::string start; ///< length and header
};

SafetensorsWriter::~SafetensorsWriter() = default;

namespace {

std::string file_start(const std::vector<TensorHeader>& tensors, const SafetensorsWriter::Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const TensorHeader& tensor : tensors) {
    const int64_t end = offset + bytes_of(tensor);
    header[tensor.name] = {{"dtype", name(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text;
}

std::string part_name(const std::string& stem, size_t part, size_t parts) {
  if (parts == 1) return stem + kEnding;
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "-%05zu-of-%05zu", part + 1, parts);
  return stem + numbers + kEnding;
}

} // namespace

SafetensorsWriter::SafetensorsWriter(Publication& publication, const std::string& stem,
                                     const std::vector<TensorHeader>& tensors, const Metadata& metadata, int64_t limit)
    : publication_(publication), stem_(stem), parts_(1) {
  std::set<std::string> seen;
  for (const TensorHeader& tensor : tensors) {
    ENSURE(seen.insert(tensor.name).second, "tensor ", tensor.name, " is written twice");
    const int64_t bytes = bytes_of(tensor);
    if (parts_.back().bytes > 0 && parts_.back().bytes + bytes > limit) parts_.emplace_back();
    parts_.back().tensors.push_back(tensor);
    parts_.back().bytes += bytes;
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].name = part_name(stem, i, parts_.size());
    parts_[i].start = file_start(parts_[i].tensors, metadata);
    total_ += int64_t(parts_[i].start.size()) + parts_[i].bytes;
  }
  open_part();
}

void SafetensorsWriter::open_part() {
  const Part& part = parts_[part_];
  file_ = &publication_.create(part.name, int64_t(part.start.size()) + part.bytes);
  file_->write(part.start.data(), int64_t(part.start.size()));
  remaining_ = part.bytes;
}

void SafetensorsWriter::write(const void* data, int64_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    if (remaining_ == 0) {
      ENSURE(part_ + 1 < parts_.size(), "more bytes than the tensors of ", stem_, " have");
      file_->close();
      ++part_;
      open_part();
    }
    const int64_t count = std::min(bytes, remaining_);
    file_->write(at, count);
    at += count, bytes -= count, remaining_ -= count;
  }
}

void SafetensorsWriter::close() {
  ENSURE(part_ + 1 == parts_.size() && remaining_ == 0, "bytes of the tensors of ", stem_, " are missing");
  file_->close();
  if (parts_.size() == 1) return;
  json map = json::object();
  int64_t bytes = 0;
  for (const Part& part : parts_) {
    bytes += part.bytes;
    for (const TensorHeader& tensor : part.tensors) map[tensor.name] = part.name;
  }
  const json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(map)}};
  publication_.write_text(stem_ + kEnding + ".index.json", index.dump(2) + "\n");
}

} // namespace triax
