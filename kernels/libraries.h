// Versions of what the binary did not bring along: each library's home registers what it can say of it.
#pragma once
#include <map>
#include <string>

namespace triax {

/// A static object where the library is at home. `version` is asked when someone wants to know; empty: not in use.
struct LibraryRegistration {
  LibraryRegistration(const char* name, std::string (*version)());
};

/// By name: "oneDNN" -> "2.6.2". What a GPU needs is there in the CUDA binary alone.
std::map<std::string, std::string> library_versions();

} // namespace triax
