// The plan's memory for people.
#pragma once
#include "kernels/program.h"
#include <iosfwd>

namespace triax {

/// Bytes by purpose at the peak, where the peak is, the arena's size and how far packing is from the least possible.
void print_memory(const Plan& plan, std::ostream& out);
std::string bytes_text(double bytes); ///< "12.3 MiB"

} // namespace triax
