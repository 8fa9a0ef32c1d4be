// Errors: one exception type, thrown by two macros. This header stands below every layer and includes nothing of triax.
#pragma once
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
