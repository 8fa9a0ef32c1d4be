#include "train/favourites.h"
#include "kernels/check.h"
#include "kernels/choice.h"
#include <map>
#include <set>

namespace triax {

void settle_favourites(Transport& transport, const Target& target) {
  if (target.kind != Target::Kind::cuda) return;
  for (const std::string& family : operation_families()) { // the same on all ranks
    if (!has_favourite(family)) continue;
    const std::string own = obstacle_of_favourite(family, target);
    const double lacking = transport.sum(own.empty() ? 0 : 1);
    if (lacking > 0) leave_out_favourite(family, own.empty() ? concat(lacking, " other ranks cannot run it") : own);
  }
}

std::string favourites_text(const Plan& plan) {
  if (plan.target.kind != Target::Kind::cuda) return "";
  std::map<std::string, std::set<std::string>> names;
  for (const Program& program : plan.programs)
    for (const Signature& signature : program.signatures) {
      const std::string family = family_of(*signature.op.kind);
      if (has_favourite(family)) names[family].insert(implementation_of(plan.target, signature.op));
    }
  std::string text;
  for (const auto& [family, all] : names) {
    const std::string why = why_left_out(family);
    text += concat(text.empty() ? "" : "; ", family, " by ", listed(all), why.empty() ? "" : concat(" (", why, ")"));
  }
  return text;
}

} // namespace triax
