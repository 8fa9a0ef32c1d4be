#include "data/file.h"
#include "kernels/check.h"
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace triax {
namespace {

constexpr size_t kBuffer = 1 << 20;

std::string reason() { return std::strerror(errno); }

} // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  DEMAND(file >= 0, "cannot read ", path, ": ", reason());
  struct stat status {};
  const bool known = fstat(file, &status) == 0;
  size_ = status.st_size;
  std::string fault;
  if (!known) fault = reason();
  if (known && !S_ISREG(status.st_mode)) fault = "it is not a regular file";
  if (fault.empty() && size_ > 0) {
    address_ = mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, file, 0);
    if (address_ == MAP_FAILED) {
      fault = reason();
      address_ = nullptr;
    }
  }
  close(file);
  DEMAND(fault.empty(), "cannot read ", path, ": ", fault);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), address_(std::exchange(other.address_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(address_, other.address_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (address_) munmap(address_, static_cast<size_t>(size_));
}

OutputFile::OutputFile(const std::string& path) : path_(path), partial_(path + ".partial") {
  file_ = open(partial_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  DEMAND(file_ >= 0, "cannot write ", partial_, ": ", reason());
}

OutputFile::~OutputFile() {
  if (file_ < 0) return;
  close(file_);
  unlink(partial_.c_str());
}

void OutputFile::append(const void* bytes, size_t size) {
  buffer_.append(static_cast<const char*>(bytes), size);
  if (buffer_.size() >= kBuffer) flush();
}

void OutputFile::flush() {
  write_at(written_, buffer_.data(), buffer_.size());
  written_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
}

void OutputFile::overwrite(int64_t offset, const void* bytes, size_t size) {
  flush();
  ENSURE(offset >= 0 && offset + static_cast<int64_t>(size) <= written_, "overwriting beyond the end of ", partial_);
  write_at(offset, static_cast<const char*>(bytes), size);
}

void OutputFile::write_at(int64_t offset, const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t n = pwrite(file_, bytes, size, offset);
    if (n < 0 && errno == EINTR) continue;
    DEMAND(n >= 0, "cannot write ", size, " bytes to ", partial_, ": ", reason());
    bytes += n;
    offset += n;
    size -= static_cast<size_t>(n);
  }
}

void OutputFile::publish() {
  ENSURE(file_ >= 0, path_, " was published before");
  flush();
  DEMAND(fsync(file_) == 0, "cannot sync ", partial_, ": ", reason());
  DEMAND(std::rename(partial_.c_str(), path_.c_str()) == 0, "cannot rename ", partial_, " to ", path_, ": ", reason());
  close(std::exchange(file_, -1));
  sync_folder(std::filesystem::path(path_).parent_path().string());
}

std::string read_file(const std::string& path) { return std::string(MappedFile(path).bytes()); }

void write_file(const std::string& path, std::string_view text) {
  OutputFile file(path);
  file.append(text.data(), text.size());
  file.publish();
}

void sync_folder(const std::string& folder) {
  const int file = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DEMAND(file >= 0, "cannot open folder ", folder, ": ", reason());
  // Some network file systems know no fsync of a folder (EINVAL); the rename stands all the same.
  const bool synced = fsync(file) == 0 || errno == EINVAL;
  const std::string fault = synced ? "" : reason();
  close(file);
  DEMAND(synced, "cannot sync folder ", folder, ": ", fault);
}

std::string hex64(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

} // namespace triax
