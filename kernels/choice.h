// Which implementation an operation runs, where that is left to triax.
#pragma once
#include "kernels/op.h"

namespace triax {

/// The name that choose_implementation takes in place of one, for kinds that have a favourite: each operation runs the
/// favourite where that takes it, else the reference.
inline constexpr const char* kAutomatic = "auto";

/// Decided by target and operation alone, never by what this binary or this machine has: all plan the same, until a run
/// finds on its own machine that the favourite cannot run there (leave_out_favourite).
using TakesFn = bool (*)(const Target&, const Op&);
struct FavouriteRegistration {
  FavouriteRegistration(const char* kind, const char* name, TakesFn takes);
};
/// A static object where a favourite is at home: why its library cannot be had on this machine; empty: it can.
struct ObstacleRegistration {
  ObstacleRegistration(const char* kind, std::string (*obstacle)());
};
/// Why the favourite of a kind, or of those that begin so, cannot run here: this binary has none for the target, or its
/// library is not there. Empty where it can, and where there is no favourite.
std::string obstacle_of_favourite(const std::string& kind, const Target& target);
/// Until the end of this process "auto" is the reference, also in plans.
void leave_out_favourite(const std::string& kind, const std::string& why);
/// What was said then; empty where the favourite was not left out.
std::string why_left_out(const std::string& kind);
/// Does the kind, or one of the kinds that begin so ("attention"), have a favourite?
bool has_favourite(const std::string& kind);
/// What operation_families() calls it: "attention" of "attention_forward".
std::string family_of(const OpKind& kind);

/// The name that runs: what was chosen, and of "auto" what that is for this operation.
std::string implementation_of(const Target& target, const Op& op);

} // namespace triax
