// Safetensors files and folders (github.com/huggingface/safetensors, README "Format"): u64 little-endian header length,
// JSON header, tensors back to back in row-major order.
#pragma once
#include "data/file.h"
#include "train/publish.h"
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace triax {

/// Element types of the format, in the order of `name`: F64, F32, F16, BF16, I64, ...
enum class StoredType { f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean, f8_e4m3, f8_e5m2 };
const char* name(StoredType type);
int64_t bytes_of(StoredType type); ///< of one element

struct TensorHeader {
  std::string name;
  StoredType type = StoredType::f32;
  std::vector<int64_t> shape; ///< empty: a scalar
};
int64_t elements(const TensorHeader& tensor);
int64_t bytes_of(const TensorHeader& tensor);

/// A tensor inside a mapped file: valid while its SafetensorsFile lives. `data` need not be aligned to the element.
struct StoredTensor : TensorHeader {
  const unsigned char* data = nullptr;
  int64_t bytes = 0;
};

/// Elements first .. first+count of an F32, F16 or BF16 tensor as floats (exact). Throws for other types.
void read_floats(const StoredTensor& tensor, int64_t first, int64_t count, float* out);

/// One file, mapped and wholly validated before any tensor is seen: length, header, types, shapes, offsets without
/// hole or overlap that end where the file ends. Throws a sentence with the path.
class SafetensorsFile {
public:
  explicit SafetensorsFile(const std::string& path);
  const std::string& path() const { return file_.path(); }
  const std::vector<StoredTensor>& tensors() const { return tensors_; } ///< in the order of their offsets
  const StoredTensor* find(const std::string& name) const;              ///< null when absent
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

private:
  MappedFile file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// The tensors of a folder: STEM.safetensors.index.json with its files, or else STEM.safetensors. An index rules:
/// missing files are an error that lists them, names outside the folder are refused, other files STEM*.safetensors and
/// tensors that it does not assign are left aside with a note.
class SafetensorsFolder {
public:
  explicit SafetensorsFolder(const std::string& folder, const std::string& stem = "model");
  SafetensorsFolder(SafetensorsFolder&&) = default;
  std::vector<std::string> names() const;                     ///< sorted
  const StoredTensor* find(const std::string& name) const;    ///< null when absent
  const StoredTensor& at(const std::string& name) const;      ///< or a sentence with the folder and the nearest name
  const std::map<std::string, std::string>& metadata() const; ///< of the first file
  const std::vector<std::string>& notes() const { return notes_; } ///< sentences to print

private:
  void open_index(const std::string& path);
  void note_strays(const std::string& stem);

  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const StoredTensor*> tensors_;
  std::vector<std::string> notes_;
};

/// Writes tensors into a publication as STEM.safetensors, or as STEM-00001-of-00002.safetensors ... and an index when
/// their bytes exceed `limit`. The same tensors give the same bytes. A tensor never spans two files.
class SafetensorsWriter {
public:
  static constexpr int64_t kLimit = 4'000'000'000; ///< bytes of tensors in one file
  using Metadata = std::map<std::string, std::string>;
  SafetensorsWriter(Publication& publication, const std::string& stem, const std::vector<TensorHeader>& tensors,
                    const Metadata& metadata = {{"format", "pt"}}, int64_t limit = kLimit);
  ~SafetensorsWriter();
  /// The next bytes of the tensors in the order given; any number of them, also parts of a tensor or several tensors.
  void write(const void* data, int64_t bytes);
  /// After the last byte: completes the last file and writes the index.
  void close();
  int64_t total_bytes() const { return total_; } ///< of all files of tensors, headers included

private:
  struct Part;
  void open_part();

  Publication& publication_;
  std::string stem_;
  std::vector<Part> parts_;
  size_t part_ = 0;       ///< being written
  int64_t remaining_ = 0; ///< bytes of tensors still to come in that part
  int64_t total_ = 0;
  HashedFile* file_ = nullptr;
};

} // namespace triax
