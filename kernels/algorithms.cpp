#include "kernels/algorithms.h"
#include "kernels/check.h"
#include "kernels/libraries.h"
#include <algorithm>
#include <mutex>
#include <set>

namespace triax {
namespace {

std::set<std::string>& dependencies() {
  static std::set<std::string> names;
  return names;
}

struct Book {
  std::mutex mutex;
  std::map<std::string, std::string> chosen;
  bool has_new = false;
};
Book& book() {
  static Book all;
  return all;
}

constexpr char kDigits[] = "0123456789abcdef";

std::string hex_of(const void* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    const auto byte = static_cast<const unsigned char*>(bytes)[i];
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

std::map<std::string, std::string> makers() {
  const auto versions = library_versions();
  std::map<std::string, std::string> all;
  for (const std::string& name : dependencies())
    all[name] = versions.count(name) ? versions.at(name) : std::string("none");
  return all;
}

} // namespace

AlgorithmRegistration::AlgorithmRegistration(std::initializer_list<const char*> depends) {
  dependencies().insert(depends.begin(), depends.end());
}

Algorithms algorithms() {
  const std::lock_guard lock(book().mutex);
  return {makers(), book().chosen};
}

bool has_new_algorithms() {
  const std::lock_guard lock(book().mutex);
  return book().has_new;
}

void algorithms_are_kept() {
  const std::lock_guard lock(book().mutex);
  book().has_new = false;
}

std::string offer_algorithms(const Algorithms& offered) {
  const auto here = makers();
  for (const auto& [name, version] : offered.made_by)
    if (!here.count(name) || here.at(name) != version)
      return concat("made with ", name, " ", version, ", and here it is ", here.count(name) ? here.at(name) : "none");
  for (const auto& [name, version] : here)
    if (!offered.made_by.count(name)) return concat("does not say with which ", name, " it was made");
  for (const auto& [what, hex] : offered.chosen)
    DEMAND(hex.size() % 2 == 0 && hex.find_first_not_of(kDigits) == std::string::npos, "the algorithm for ", what,
           " is '", hex, "', which is not hex");
  const std::lock_guard lock(book().mutex);
  for (const auto& [what, hex] : offered.chosen) book().chosen.emplace(what, hex);
  return "";
}

void forget_algorithms() {
  const std::lock_guard lock(book().mutex);
  book().chosen.clear();
  book().has_new = false;
}

bool find_algorithm(const std::string& what, void* bytes, size_t count) {
  const std::lock_guard lock(book().mutex);
  const auto found = book().chosen.find(what);
  if (found == book().chosen.end() || found->second.size() != 2 * count) return false;
  const auto digit = [](char c) { return unsigned(std::find(kDigits, kDigits + 16, c) - kDigits); };
  for (size_t i = 0; i < count; ++i)
    static_cast<unsigned char*>(bytes)[i] =
        static_cast<unsigned char>(digit(found->second[2 * i]) << 4 | digit(found->second[2 * i + 1]));
  return true;
}

void keep_algorithm(const std::string& what, const void* bytes, size_t count) {
  const std::lock_guard lock(book().mutex);
  book().chosen[what] = hex_of(bytes, count);
  book().has_new = true;
}

} // namespace triax
