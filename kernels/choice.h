// Which implementation an operation runs, where that is left to triax.
#pragma once
#include "kernels/op.h"

namespace triax {

/// The name that choose_implementation takes in place of one, for kinds that have a favourite: each operation runs the
/// favourite where that takes it, else the reference.
inline constexpr const char* kAutomatic = "auto";

/// Decided by target and operation alone, never by what this binary or this machine has: all plan the same.
using TakesFn = bool (*)(const Target&, const Op&);
struct FavouriteRegistration {
  FavouriteRegistration(const char* kind, const char* name, TakesFn takes);
};
/// Does the kind, or one of the kinds that begin so ("attention"), have a favourite?
bool has_favourite(const std::string& kind);
/// What operation_families() calls it: "attention" of "attention_forward".
std::string family_of(const OpKind& kind);

/// The name that runs: what was chosen, and of "auto" what that is for this operation.
std::string implementation_of(const Target& target, const Op& op);

} // namespace triax
