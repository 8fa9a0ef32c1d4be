// This program, started again as others.
#pragma once
#include <string>
#include <vector>

namespace triax {

/// Runs triax with these arguments on this machine and waits for it, under mpirun where there are several ranks (more
/// than there are cores, if need be). Its output goes to the file. Returns its exit code, 128 + its number when a
/// signal ended it. Throws where mpirun cannot be started.
int run_triax(const std::vector<std::string>& arguments, int ranks, const std::string& output);

/// A fresh folder for what is of no use afterwards; removed with all its content.
class ScratchFolder {
public:
  explicit ScratchFolder(const std::string& prefix);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

private:
  std::string path_;
};

} // namespace triax
