// The clock that spans of a run are measured by.
#pragma once
#include <chrono>

namespace triax {

using Wall = std::chrono::steady_clock;

inline double seconds_since(Wall::time_point then) { return std::chrono::duration<double>(Wall::now() - then).count(); }

} // namespace triax
