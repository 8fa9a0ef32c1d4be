#include "train/memory_table.h"
#include <iomanip>
#include <ostream>

namespace triax {

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 4; bytes /= 1024) ++unit;
  std::ostringstream text;
  text << std::fixed << std::setprecision(unit ? 1 : 0) << bytes << " " << kUnits[unit];
  return text.str();
}

void print_memory(const Plan& plan, std::ostream& out) {
  const Plan::Peak peak = plan.peak(Space::device);
  const double arena = double(plan.bytes[int(Space::device)]);
  out << "memory " << bytes_text(arena) << " arena on " << plan.target.name << " (" << std::setprecision(3)
      << 100 * (arena / double(peak.total) - 1) << "% over the least possible)";
  if (const int64_t pinned = plan.bytes[int(Space::pinned)])
    out << ", " << bytes_text(double(pinned)) << " pinned host memory";
  out << "\n      ";
  const char* separator = " ";
  for (int p = 0; p < kPurposes; ++p) {
    if (peak.bytes[p] == 0) continue;
    out << separator << name_of(Purpose(p)) << " " << bytes_text(double(peak.bytes[p]));
    separator = ", ";
  }
  out << "\n       peak in " << peak.program << " at " << peak.instruction << "\n";
}

} // namespace triax
