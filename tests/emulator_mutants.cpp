// The emulation reports every mutant of the real kernels that tests/mutants.py makes.
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/floor.h"
#include "kernels/rope.h"
#include "kernels/step_state.h"
#include "tests/helpers.h"
#include "tests/kernel_check.h"
#include <map>

namespace triax {
namespace {

using namespace test;

constexpr Dtype kF32 = Dtype::f32, kBf16 = Dtype::bf16;

void run_loss(KernelCheck& k) {
  const int64_t N = 3, V = 300;
  const Tensor z = k.in(kF32, {N, V}, numbers(kF32, N * V, 1)), labels = k.in({N}, Ints{5, 299, 0}),
               losses = k.out(kF32, {N});
  k.run(cross_entropy(losses, z, labels, 0.5f, true));
  k.run(sum_losses(k.in(kF32, {kStepScalars}, Vec(kStepScalars, 0)), losses, labels));
}
void run_rope(KernelCheck& k) {
  const int64_t N = 3, heads = 4, D = 16;
  const Tensor table = k.in(kF32, {N, D}, numbers(kF32, N * D, 2));
  k.run(rope(k.in(kF32, {N, heads * D}, numbers(kF32, N * heads * D, 1)), table, D, false));
}
void run_copy(KernelCheck& k) {
  const int64_t n = 1003;
  k.run(floor_copy(k.out(kF32, {n}), k.in(kF32, {n}, numbers(kF32, n, 1))));
}
void run_norm2(KernelCheck& k) {
  const int64_t n = 1003;
  k.run(squared_norm(k.out(kF32, {1}), k.in(kF32, {n}, numbers(kF32, n, 1)), k.bytes(StepState{}), {n, 1, n, 1}));
}
void run_embedding(KernelCheck& k) {
  const int64_t C = 40;
  const Tensor tokens = k.in({4}, Ints{1, 1, 0, 1}), order = k.in({4}, Ints{2, 0, 1, 3});
  k.run(embedding_backward(k.in(kF32, {2, C}, Vec(80, 0)), {}, k.in(kF32, {4, C}, numbers(kF32, 4 * C, 1)), tokens,
                           order));
}
void run_flash(KernelCheck& k) {
  const int64_t T = 200, D = 64;
  const Tensor qkv = k.in(kBf16, {T, 3 * D}, numbers(kBf16, T * 3 * D, 1));
  k.run(attention_forward(
      {{1, T, 1, 1, D, 0.125f}, k.out(kBf16, {T, D}), k.out(kF32, {1, 1, T}), qkv, k.in({T}, Ints(T, 0))}));
}

using Run = void (*)(KernelCheck&);
/// By the beginning of a mutant's name.
const std::map<std::string, Run> kRuns{{"reduce", run_loss}, {"loss", run_loss},  {"rope", run_rope},
                                       {"each", run_copy},   {"norm", run_norm2}, {"embedding", run_embedding},
                                       {"flash", run_flash}};

std::vector<std::string> mutants() {
  std::istringstream list(TRIAX_MUTANTS);
  std::vector<std::string> names;
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  return names;
}

TEST_SUITE_BEGIN("emulator_mutants");

TEST_CASE("emulation: each mutant of a kernel is reported") {
  CHECK(mutants().size() >= 8);
  for (const std::string& name : mutants()) {
    CAPTURE(name);
    const Run run = kRuns.at(name.substr(0, name.find('_')));
    const std::string units = "mutant_" + name;
    const std::string report = error_of([&] {
      const emulation::Emulation emulation(units.c_str());
      KernelCheck k(1, "sm_90a", true);
      run(k);
    });
    CAPTURE(report);
    CHECK(has(report, "emulation: "));
    CHECK(has(report, "kernels/"));
  }
}

TEST_SUITE_END();

} // namespace
} // namespace triax
