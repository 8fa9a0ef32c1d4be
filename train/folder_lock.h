// One writer a run folder.
#pragma once
#include <string>

namespace triax {

/// Held until destroyed, also by a process that is killed. Makes the folder. Throws where another process holds it;
/// file systems without locks are trusted.
class FolderLock {
public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

private:
  int descriptor_;
};

} // namespace triax
