// What a library has chosen for each thing that it was asked to do, where it has a choice: kept, so that a later
// process takes the same and computes the same bits.
#pragma once
#include <cstddef>
#include <initializer_list>
#include <map>
#include <string>

namespace triax {

struct Algorithms {
  std::map<std::string, std::string> made_by; ///< of library_versions(), those that they hold for
  std::map<std::string, std::string> chosen;  ///< what was asked for -> the library's own bytes, in hex
};

/// A static object where such a library is at home: the names in library_versions() that its choices depend on.
struct AlgorithmRegistration {
  AlgorithmRegistration(std::initializer_list<const char*> depends);
};

/// What this process has chosen so far; empty made_by where nothing in this binary has a choice.
Algorithms algorithms();
/// Has this process chosen what was not offered to it, since the last call of `algorithms_are_kept`?
bool has_new_algorithms();
void algorithms_are_kept();
/// From now on these are taken where they are asked for. Returns a sentence that says why they are not: another version
/// or device; empty where they are. Throws on what is not hex.
std::string offer_algorithms(const Algorithms& offered);
void forget_algorithms(); ///< for tests

/// For libraries: what was offered or kept for this; false where nothing was, or not so many bytes.
bool find_algorithm(const std::string& what, void* bytes, size_t count);
void keep_algorithm(const std::string& what, const void* bytes, size_t count);

} // namespace triax
