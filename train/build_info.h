// What this binary was built from. The values are written by scripts/build_info.cmake when a source has changed.
#pragma once

namespace triax {

struct BuildInfo {
  const char* sources;  ///< SHA-256 over the names and contents of all sources and of CMakeLists.txt
  const char* compiler; ///< "GNU 12.2.0"
  const char* options;  ///< "Release", "Release with sanitizers", "Release with CUDA 12.8.93"
};
extern const BuildInfo kBuildInfo;

} // namespace triax
