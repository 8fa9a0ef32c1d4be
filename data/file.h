// Files of the data part: mapped for reading, written aside and published by rename.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace triax {

/// A whole file mapped read-only. Movable; the bytes live as long as the object.
class MappedFile {
public:
  MappedFile() = default;
  /// Throws naming the file when it is missing, a folder, or unreadable. An empty file maps to no bytes.
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return {static_cast<const char*>(address_), static_cast<size_t>(size_)}; }
  const unsigned char* data() const { return static_cast<const unsigned char*>(address_); }
  int64_t size() const { return size_; }

private:
  std::string path_;
  void* address_ = nullptr;
  int64_t size_ = 0;
};

/// A file that appears under its name only when complete: written as `path + ".partial"`, synced, renamed by `publish`.
/// Destroyed before that, it leaves nothing behind. A failed write throws naming the file and the system's reason.
class OutputFile {
public:
  explicit OutputFile(const std::string& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  void append(const void* bytes, size_t size);
  /// Writes over bytes [offset, offset + size) of what was appended already.
  void overwrite(int64_t offset, const void* bytes, size_t size);
  void publish();

private:
  void flush();
  void write_at(int64_t offset, const char* bytes, size_t size);

  std::string path_, partial_, buffer_;
  int file_ = -1;
  int64_t written_ = 0;
};

/// The file's whole content.
std::string read_file(const std::string& path);
/// Writes `text` through an OutputFile.
void write_file(const std::string& path, std::string_view text);
/// Makes renames inside `folder` durable.
void sync_folder(const std::string& folder);
/// 16 hexadecimal digits, as hashes stand in JSON (a double cannot hold 64 bits).
std::string hex64(uint64_t value);

} // namespace triax
