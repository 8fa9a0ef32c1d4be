#include "kernels/libraries.h"

namespace triax {
namespace {

std::map<std::string, std::string (*)()>& registered() {
  static std::map<std::string, std::string (*)()> libraries;
  return libraries;
}

} // namespace

LibraryRegistration::LibraryRegistration(const char* name, std::string (*version)()) { registered()[name] = version; }

std::map<std::string, std::string> library_versions() {
  std::map<std::string, std::string> versions;
  for (const auto& [name, version] : registered())
    if (const std::string text = version(); !text.empty()) versions[name] = text;
  return versions;
}

} // namespace triax
