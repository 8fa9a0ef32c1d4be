// Errors: one exception type, thrown by two macros. This header stands below every layer and includes nothing of triax.
#pragma once
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

namespace triax {

/// The only exception triax throws. `what()` is the sentence that `main` prints behind rank and host.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The arguments written one after another, as `std::ostream` writes them.
template <class... Args> std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

/// "a, b, c", or "a, b and 7 more" where there are more than `most`.
template <class Names> std::string listed(const Names& names, size_t most = SIZE_MAX) {
  std::string text;
  size_t n = 0;
  for (const std::string& name : names) {
    if (n++ < most) text += (text.empty() ? "" : ", ") + name;
  }
  return n > most ? concat(text, " and ", n - most, " more") : text;
}

[[noreturn]] inline void fail(const std::string& sentence) { throw Error(sentence); }

} // namespace triax

/// What a user can get wrong: the sentence names the thing, the place and the remedy; no source line is shown.
#define DEMAND(condition, ...)                                                                                         \
  do {                                                                                                                 \
    if (!(condition)) ::triax::fail(::triax::concat(__VA_ARGS__));                                                     \
  } while (false)

/// What triax itself promises: the sentence is followed by the expression and its place.
#define ENSURE(condition, ...)                                                                                         \
  do {                                                                                                                 \
    if (!(condition))                                                                                                  \
      ::triax::fail(::triax::concat(__VA_ARGS__, " [", __FILE__, ":", __LINE__, ": ", #condition, " is false]"));      \
  } while (false)
