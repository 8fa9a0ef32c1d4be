// How many bytes the threads of a kernel load and store, beside the least that must be moved: counted by the race
// detector. With TRIAX_MOVED=NAME in the environment (make check) also printed, for each kernel of the benchmarks with
// this name, in the size that they check.
#include "kernels/elementwise.h"
#include "kernels/head_norm.h"
#include "tests/kernel_check.h"
#include "train/bench_kernels.h"
#include <cctype>
#include <cstdio>

namespace triax {
namespace {

using namespace test;
using emulation::Emulation;
using emulation::moved;

const Target kGpu = Target::parse("sm_90a");

/// All kernels once, in bf16 where they take it.
std::vector<KernelCase> cases() {
  std::vector<KernelCase> all;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32})
    for (const auto& of_kind : {row_wise_cases, attention_cases})
      for (const KernelCase& k : of_kind({kGpu, 1}, dtype, BenchSize::usual))
        if (std::none_of(all.begin(), all.end(), [&](const KernelCase& a) { return a.name == k.name; }))
          all.push_back(k);
  return all;
}

std::string letters(const std::string& text) {
  std::string small;
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c))) small += char(std::tolower(static_cast<unsigned char>(c)));
  return small;
}

/// A line for each implementation that the emulation has.
void print_moved(const KernelCase& k) {
  const Emulation emulation("races");
  BenchCase c({kGpu, 1}, k.dtype);
  const Op op = k.small(c);
  for (const std::string& name : implementations(*op.kind)) {
    const LaunchFn launch = find_launch(*op.kind, kGpu.kind, name);
    if (!launch || launch == find_launch(*op.kind, {}, name)) continue;
    const ImplementationScope scope(*op.kind, name);
    const double needed = describe(kGpu, op).bytes;
    c.call(op)();
    const auto [read, written] = moved();
    printf("%7.3f  %s%s: %.0f bytes read, %.0f written, %.0f needed: %s\n", double(read + written) / needed,
           k.name.c_str(), name == kReference ? "" : concat(" (", name, ")").c_str(), double(read), double(written),
           needed, op.describe().c_str());
  }
}

TEST_SUITE_BEGIN("kernels_moved");

TEST_CASE("moved: each byte of an elementwise kernel once") {
  constexpr int64_t n = 1003;
  const auto add_ones = [&](const char* units) {
    const Emulation emulation(units);
    KernelCheck k(1, "sm_90a");
    const Vec x(size_t(n), 1.0);
    const Tensor a = k.in(Dtype::f32, {n}, x), b = k.in(Dtype::f32, {n}, x), y = k.out(Dtype::f32, {n});
    k.run(add(y, a, b));
    return moved();
  };
  for (const char* units : {"races", "races_small"}) {
    CHECK(add_ones(units).read == 8 * n);
    CHECK(add_ones(units).written == 4 * n);
  }
  CHECK(add_ones("emulated").read == 0);
}

TEST_CASE("launched: a kernel with the most dynamic shared memory that it was given") {
  const auto of = [](const char* name) {
    emulation::Launched found;
    for (const emulation::Launched& one : emulation::launched())
      if (one.kernel.find(name) != std::string::npos && one.shared >= found.shared) found = one;
    return found;
  };
  const Emulation emulation("races");
  for (const int64_t D : {8, 16, 8}) {
    KernelCheck k(1, "sm_90a", true);
    const Vec x(size_t(3 * D), 1.0), ones(size_t(2 * D), 1.0);
    const Tensor weight = k.in(Dtype::f32, {2 * D}, ones), before = k.in(Dtype::f32, {3, D}, x),
                 dx = k.in(Dtype::f32, {3, D}, x), dweight = k.in(Dtype::f32, {2 * D}, ones);
    k.run(head_norm_backward({.queries = 1, .dx = dx, .dweight = dweight, .before = before, .weight = weight}));
  }
  const emulation::Launched one = of("head_norm_backward_kernel<256, 8, 4, float>");
  CHECK(one.threads == 256);
  CHECK(one.shared == 256 / 8 * 2 * 16 * sizeof(float)); // a row of sums for each group of 8 lanes
}

TEST_CASE("moved: what was asked for") {
  const char* asked = std::getenv("TRIAX_MOVED");
  if (!asked) return;
  bool titled = false;
  for (const KernelCase& k : cases()) {
    if (letters(k.name).find(letters(asked)) == std::string::npos) continue;
    if (!titled) printf("bytes that the threads load and store, before any cache, over those that must be moved\n");
    titled = true;
    print_moved(k);
  }
  if (!titled)
    printf("no kernel of `triax bench kernels` has '%s' in its name, so moved bytes are not counted\n", asked);
}

TEST_SUITE_END();

} // namespace
} // namespace triax
