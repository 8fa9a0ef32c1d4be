// Two builds of triax, timed in turn: does a kernel's time differ, and by how much?
#pragma once
#include "train/bench_kernels.h"
#include <map>
#include <string>
#include <vector>

namespace triax {

/// The median of the ratios of pairs, with an interval that holds the true median in at least 95% of cases whatever the
/// distribution: two order statistics, by the sign test (Conover 1999, 3.2). It needs at least 6 pairs.
struct Ratio {
  double median = 1, low = 1, high = 1;
  double coverage = 0; ///< of the interval, at least 0.95
  bool differs() const { return low > 1 || high < 1; }
};
constexpr int kFewestPairs = 6;
/// Of `own[i]` over `other[i]`, measured one after the other.
Ratio ratio_of(const std::vector<double>& own, const std::vector<double>& other);

struct AgainstRow {
  std::string key; ///< kernel, implementation, dtype, shape
  std::string name, shape, dtype;
  std::vector<double> own, other; ///< medians of each process, by pair
  Ratio ratio;
};

struct AgainstOptions {
  KernelOptions kernels;
  std::string target;   ///< as given: a word of --target
  std::string revision; ///< what git understands
  int pairs = 9;        ///< of processes
};

/// Builds `revision` by scripts/build_revision of the tree that this binary lies in (or of the working folder's), then
/// runs both binaries' `bench kernels` in turn: each pair in the other order than the one before, since what runs
/// second may find a warmer machine. Writes what it does to `out`. A revision that knows no names, targets or dtypes
/// measures all its rows on the CPU.
std::vector<AgainstRow> bench_against(const AgainstOptions& options, std::ostream& out);

} // namespace triax
