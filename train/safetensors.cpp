#include "train/safetensors.h"
#include "kernels/check.h"
#include "train/json_file.h"
#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <tuple>

namespace triax {

using json = nlohmann::json;

namespace {

constexpr uint64_t kMostHeader = 100'000'000; // the format's own limit

struct TypeRow {
  const char* name;
  int64_t bytes;
};
constexpr TypeRow kTypes[] = {{"F64", 8}, {"F32", 4}, {"F16", 2},  {"BF16", 2},    {"I64", 8},
                              {"I32", 4}, {"I16", 2}, {"I8", 1},   {"U64", 8},     {"U32", 4},
                              {"U16", 2}, {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};

/// A whole number at least 0, or -1.
int64_t natural(const json& value) {
  if (!value.is_number_unsigned()) return -1;
  const uint64_t number = value.get<uint64_t>();
  return number <= uint64_t(INT64_MAX) ? int64_t(number) : -1;
}

struct Placed {
  StoredTensor tensor;
  int64_t begin = 0, end = 0;
};

void read_shape(const json& entry, const std::string& place, TensorHeader& tensor) {
  DEMAND(entry.contains("dtype") && entry["dtype"].is_string(), place, " has no dtype");
  const std::string dtype = entry["dtype"].get<std::string>();
  const auto row = std::find_if(std::begin(kTypes), std::end(kTypes), [&](auto& r) { return dtype == r.name; });
  DEMAND(row != std::end(kTypes), place, " has the unknown dtype \"", dtype, "\"");
  tensor.type = StoredType(row - std::begin(kTypes));
  DEMAND(entry.contains("shape") && entry["shape"].is_array(), place, " has no shape");
  int64_t bytes = row->bytes;
  for (const json& dim : entry["shape"]) {
    const int64_t size = natural(dim);
    DEMAND(size >= 0, place, " has the shape ", shown(entry["shape"]));
    tensor.shape.push_back(size);
    DEMAND(!__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes), place, " has the shape ",
           shown(entry["shape"]), ", which is more than can be counted");
  }
}

Placed read_entry(const std::string& name, const json& entry, const std::string& path) {
  const std::string place = concat(path, ": tensor \"", name, "\"");
  DEMAND(entry.is_object(), place, " is ", shown(entry), ", but must be an object");
  Placed placed;
  placed.tensor.name = name;
  read_shape(entry, place, placed.tensor);
  DEMAND(entry.contains("data_offsets") && entry["data_offsets"].is_array() && entry["data_offsets"].size() == 2, place,
         " has no pair of data_offsets");
  const json& offsets = entry["data_offsets"];
  placed.begin = natural(offsets[0]), placed.end = natural(offsets[1]);
  DEMAND(placed.begin >= 0 && placed.end >= placed.begin, place, " has the data_offsets ", shown(offsets));
  placed.tensor.bytes = placed.end - placed.begin;
  DEMAND(placed.tensor.bytes == bytes_of(placed.tensor), place, " has ", bytes_of(placed.tensor),
         " bytes by its shape, but ", placed.tensor.bytes, " by its data_offsets ", shown(offsets));
  return placed;
}

/// The header's text; throws when the file is too short to hold it.
std::string_view header_of(const MappedFile& file) {
  const std::string_view bytes = file.bytes();
  DEMAND(bytes.size() >= 8, file.path(), ": has ", bytes.size(), " bytes: it is cut off, or no safetensors file");
  uint64_t length = 0;
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&length, bytes.data(), 8);
  DEMAND(length <= kMostHeader, file.path(), ": its header would have ", length,
         " bytes, more than the format allows: it is no safetensors file");
  DEMAND(bytes.size() - 8 >= length, file.path(), ": has ", bytes.size(), " bytes, but its header alone needs ",
         8 + length, ": it is cut off");
  DEMAND(length > 0 && bytes[8] == '{', file.path(), ": its header does not begin with {: it is no safetensors file");
  return bytes.substr(8, length);
}

void check_places(const std::vector<Placed>& placed, int64_t available, const std::string& path) {
  int64_t end = 0;
  for (const Placed& p : placed) {
    DEMAND(p.begin == end, path, ": tensor \"", p.tensor.name, "\" begins at ", p.begin,
           ", but the one before it ends at ", end, p.begin < end ? ": they overlap" : ": there is a hole");
    end = p.end;
  }
  DEMAND(end <= available, path, ": is cut off: its tensors need ", end, " bytes, but ", available, " are there");
  DEMAND(end == available, path, ": has ", available - end, " bytes behind its last tensor");
}

float from_half(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = (half >> 10) & 31, mantissa = half & 1023;
  if (exponent == 0) return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(mantissa) * 0x1p-24f));
  return std::bit_cast<float>(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13);
}

} // namespace

const char* name(StoredType type) { return kTypes[size_t(type)].name; }
int64_t bytes_of(StoredType type) { return kTypes[size_t(type)].bytes; }

int64_t elements(const TensorHeader& tensor) {
  int64_t count = 1;
  for (const int64_t dim : tensor.shape) count *= dim;
  return count;
}

int64_t bytes_of(const TensorHeader& tensor) { return elements(tensor) * bytes_of(tensor.type); }

void read_floats(const StoredTensor& tensor, int64_t first, int64_t count, float* out) {
  ENSURE(first >= 0 && count >= 0 && first + count <= elements(tensor), "elements outside of ", tensor.name);
  const unsigned char* data = tensor.data + first * bytes_of(tensor.type);
  if (count == 0) return;
  if (tensor.type == StoredType::f32) {
    std::memcpy(out, data, size_t(count) * 4);
    return;
  }
  DEMAND(tensor.type == StoredType::bf16 || tensor.type == StoredType::f16, "tensor ", tensor.name, " is of type ",
         name(tensor.type), ", but must be F32, F16 or BF16 to be read as numbers");
  const bool half = tensor.type == StoredType::f16;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, data + 2 * i, 2);
    out[i] = half ? from_half(bits) : std::bit_cast<float>(uint32_t(bits) << 16);
  }
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const std::string_view header = header_of(file_);
  const json entries = parse_json(header, path + ": header");
  std::vector<Placed> placed;
  for (const auto& [name, entry] : entries.items()) {
    if (name != "__metadata__") {
      placed.push_back(read_entry(name, entry, path));
      continue;
    }
    DEMAND(entry.is_object(), path, ": __metadata__ is ", shown(entry), ", but must be an object of strings");
    for (const auto& [key, value] : entry.items()) {
      DEMAND(value.is_string(), path, ": __metadata__ \"", key, "\" is ", shown(value), ", but must be a string");
      metadata_[key] = value.get<std::string>();
    }
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::tie(a.begin, a.end, a.tensor.name) < std::tie(b.begin, b.end, b.tensor.name);
  });
  const int64_t start = 8 + int64_t(header.size());
  check_places(placed, file_.size() - start, path);
  for (Placed& p : placed) {
    by_name_[p.tensor.name] = tensors_.size();
    p.tensor.data = file_.data() + start + p.begin;
    tensors_.push_back(std::move(p.tensor));
  }
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

} // namespace triax
