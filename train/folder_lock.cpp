#include "train/folder_lock.h"
#include "kernels/check.h"
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <unistd.h>

namespace triax {

FolderLock::FolderLock(const std::string& folder) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  const std::string path = (std::filesystem::path(folder) / ".lock").string();
  descriptor_ = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  DEMAND(descriptor_ >= 0, path, " cannot be written (", std::strerror(errno),
         "); choose another run.folder or mend its permissions");
  const bool taken = flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (taken) close(descriptor_);
  DEMAND(!taken, "another process trains in ", folder, "; wait for it, stop it, or choose another run.folder");
}

FolderLock::~FolderLock() { close(descriptor_); }

} // namespace triax
