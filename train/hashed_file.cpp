#include "kernels/check.h"
#include "train/publish.h"
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

namespace triax {

struct HashedFile::Hash {
  XXH3_state_t* state = XXH3_createState();
  int64_t bytes = 0;
  Hash() { XXH3_64bits_reset(state); }
  ~Hash() { XXH3_freeState(state); }
  Hash(const Hash&) = delete;
  Hash& operator=(const Hash&) = delete;

  void update(const char* data, int64_t count, std::vector<uint64_t>& done) {
    while (count > 0) {
      const int64_t part = std::min(count, kBlock - bytes);
      XXH3_64bits_update(state, data, size_t(part));
      data += part, count -= part, bytes += part;
      if (bytes == kBlock) finish(done);
    }
  }
  void finish(std::vector<uint64_t>& done) {
    if (bytes == 0) return;
    done.push_back(XXH3_64bits_digest(state));
    XXH3_64bits_reset(state);
    bytes = 0;
  }
};

HashedFile::HashedFile(const std::string& path, int64_t expected)
    : path_(path), expected_(expected), hash_(std::make_unique<Hash>()) {
  descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail_writing(expected);
}

HashedFile::~HashedFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void HashedFile::fail_writing(int64_t bytes) const {
  const std::string reason = std::strerror(errno);
  std::string folder = std::filesystem::path(path_).parent_path().string();
  struct statvfs status {};
  const bool known = statvfs(folder.empty() ? "." : folder.c_str(), &status) == 0;
  const std::string free = known ? concat("; ", uint64_t(status.f_bavail) * status.f_frsize, " bytes are free") : "";
  fail(concat("cannot write ", path_, ": ", reason, "; ", std::max(bytes, expected_ - bytes_),
              " bytes are still to be written", free));
}

void HashedFile::write(const void* data, int64_t bytes) {
  ENSURE(descriptor_ >= 0, path_, " is closed");
  const char* at = static_cast<const char*>(data);
  hash_->update(at, bytes, hashes_);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, at, size_t(std::min<int64_t>(bytes, 1 << 30)));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_writing(bytes);
    at += written, bytes -= written, bytes_ += written;
  }
}

void HashedFile::close() {
  if (descriptor_ < 0) return;
  hash_->finish(hashes_);
  if (fsync(descriptor_) != 0) fail_writing(0);
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) fail_writing(0);
}

} // namespace triax
