// What "auto" is for a run: an operation's favourite, or the reference where a rank's machine cannot run that.
#pragma once
#include "comm/transport.h"
#include "kernels/program.h"

namespace triax {

/// Collective, before anything is planned: where a rank of a GPU has no favourite of a family, no rank takes it.
void settle_favourites(Transport& transport, const Target& target);

/// For people, of a GPU's plan: "attention by cudnn", or "attention by triax (...)" with the reason where it was
/// settled so. Empty for a CPU.
std::string favourites_text(const Plan& plan);

} // namespace triax
