// Matrix products on the CPU against the plain loop: every form, ragged sizes, strided rows, and nothing written beyond
// the result and the scratch that was asked for.
#include "kernels/matmul.h"
#include "tests/guarded.h"
#include "tests/helpers.h"
#include <cstdlib>
#include <doctest/doctest.h>

namespace triax {
namespace {

using oracle::Vec;
using test::Matrix;

struct Case {
  int64_t m, n, k;
  bool transpose_a, transpose_b, bias, accumulate;
  Dtype dtype, result;
  int64_t gap = 0;
  int threads = 2;
};

Vec run(const Case& t) {
  CAPTURE(t.m);
  CAPTURE(t.n);
  CAPTURE(t.k);
  CAPTURE(t.transpose_a);
  CAPTURE(t.transpose_b);
  CAPTURE(t.bias);
  CAPTURE(t.accumulate);
  CAPTURE(std::string(name_of(t.dtype)));
  CAPTURE(std::string(name_of(t.result)));
  CAPTURE(t.gap);
  CAPTURE(t.threads);
  Matrix a(t.dtype, t.transpose_a ? t.k : t.m, t.transpose_a ? t.m : t.k, t.gap, 1);
  Matrix b(t.dtype, t.transpose_b ? t.n : t.k, t.transpose_b ? t.k : t.n, t.gap, 2);
  Matrix c(t.result, t.m, t.n, t.gap, 3), bias(t.dtype, 1, t.n, 0, 4);
  const Op op = matmul({.c = c.tensor(),
                        .a = a.tensor(),
                        .b = b.tensor(),
                        .bias = t.bias ? bias.tensor().view({t.n}) : Tensor{},
                        .transpose_a = t.transpose_a,
                        .transpose_b = t.transpose_b,
                        .accumulate = t.accumulate});
  const Description description = op.kind->describe(Target{}, op);
  CHECK(description.flops == 2.0 * double(t.m * t.n * t.k));
  CHECK(description.trusted);
  CHECK(test::run_guarded(op, t.threads));
  Vec got = c.read();
  const Vec want = oracle::matmul({.M = int(t.m),
                                   .N = int(t.n),
                                   .K = int(t.k),
                                   .transpose_a = t.transpose_a,
                                   .transpose_b = t.transpose_b,
                                   .a = a.value(),
                                   .b = b.value(),
                                   .bias = t.bias ? bias.value() : Vec{},
                                   .accumulate = t.accumulate ? c.value() : Vec{}});
  // The result is rounded once more where it is bf16: half a unit in its last of 8 digits.
  const double tolerance = t.result == Dtype::bf16 ? 3e-3 : 1e-6;
  CHECK(oracle::relative_error(got, want) < tolerance);
  CHECK(c.intact());
  CHECK(a.read() == a.value());
  CHECK(b.read() == b.value());
  return got;
}

constexpr Dtype kF32 = Dtype::f32, kBf16 = Dtype::bf16;

TEST_SUITE_BEGIN("kernels_matmul");

TEST_CASE("matmul: every form at ragged sizes") {
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                {1, 17, 5},
                                {7, 1, 33},
                                {5, 1, 1},
                                {1, 1, 19},
                                {33, 6, 1},
                                {31, 37, 29},
                                {64, 48, 32},
                                {129, 67, 101},
                                {257, 130, 19}})
    for (const auto& [dtype, result] : {std::pair{kF32, kF32}, {kBf16, kF32}, {kBf16, kBf16}})
      for (int form = 0; form < 16; ++form)
        run({m, n, k, bool(form & 1), bool(form & 2), bool(form & 4), bool(form & 8), dtype, result, form % 3,
             1 + form / 2 % 2});
}

TEST_CASE("matmul: the products of a layer, one and two threads") {
  constexpr int64_t kRows = 384, kIn = 192, kOut = 320;
  for (const Dtype dtype : {kF32, kBf16})
    for (const int threads : {1, 2})
      for (const int64_t gap : {0, 64}) {
        run({kRows, kOut, kIn, false, true, true, false, dtype, dtype, gap, threads});
        run({kRows, kIn, kOut, false, false, false, false, dtype, dtype, gap, threads});
        run({kOut, kIn, kRows, true, false, false, true, dtype, kF32, gap, threads});
        run({2100, 48, 56, false, true, true, false, dtype, dtype, gap, threads}); // rows enough to pack b
      }
}

TEST_CASE("matmul: the same bits every time") {
  for (const Dtype dtype : {kF32, kBf16}) {
    const Case dw{320, 192, 1031, true, false, false, true, dtype, kF32, 0, 2};
    CHECK(run(dw) == run(dw));
    const Case y{1031, 192, 320, false, true, true, false, dtype, dtype, 0, 2};
    CHECK(run(y) == run(y));
  }
}

TEST_CASE("matmul: nothing to do") {
  for (const Dtype dtype : {kF32, kBf16}) {
    CHECK(run({0, 16, 8, false, true, false, false, dtype, dtype}).empty());
    CHECK(run({16, 0, 8, false, true, false, false, dtype, dtype}).empty());
    CHECK(run({16, 8, 0, true, false, false, true, dtype, kF32}).size() == 128);
  }
}

TEST_CASE("matmul: shapes that do not fit are refused") {
  const auto dense = [](Dtype dtype, int64_t rows, int64_t columns) {
    return Tensor::dense(4096, Space::device, dtype, {rows, columns});
  };
  const Tensor c = dense(kF32, 4, 6), a = dense(kF32, 4, 5), b = dense(kF32, 5, 6);
  const auto refused = [](const Matmul& m) { return test::error_of([&] { matmul(m); }); };
  CHECK(refused({.c = c, .a = a, .b = b}).empty());
  CHECK(test::has(refused({.c = c, .a = a, .b = b, .transpose_b = true}), "is not the product"));
  CHECK(test::has(refused({.c = c, .a = dense(kBf16, 4, 5), .b = b}), "a is"));
  CHECK(test::has(refused({.c = dense(kBf16, 4, 6), .a = a, .b = b}), "c is"));
  CHECK(
      test::has(refused({.c = c, .a = a, .b = b, .bias = Tensor::dense(4096, Space::device, kBf16, {6})}), "bias is"));
  CHECK(test::has(refused({.c = c, .a = dense(kF32, 5, 4).slice(0, 0, 4), .b = b}), "is not the product"));
}

TEST_CASE("matmul: described for a GPU") {
  const auto dense = [](int64_t rows, int64_t columns) {
    return Tensor::dense(4096, Space::device, kBf16, {rows, columns});
  };
  const Op op = matmul({.c = dense(64, 32), .a = dense(64, 16), .b = dense(32, 16), .transpose_b = true});
  const auto scratch = [&](const char* target) { return op.kind->describe(Target::parse(target), op).scratch; };
  CHECK(scratch("sm_80") == 4 << 20);
  CHECK(scratch("sm_90a") == 32 << 20);
  CHECK(scratch("sm_100a") == 32 << 20);
  CHECK(op.kind->describe(Target::parse("sm_90a"), op).kernels == std::vector<std::string>{"cublaslt_matmul"});
}

TEST_CASE("matmul: the rate of the machine") {
  CHECK(measure_matrix_rate(kF32, 1) > 1e8);
  if (cpu_has_bf16()) CHECK(measure_matrix_rate(kBf16, 1) > 1e8);
}

// What oneDNN can do is settled when its first product is made, so a CPU without bf16 is another process.
TEST_CASE("matmul: a CPU without bf16 products") {
  constexpr const char* kChild = "TRIAX_TEST_WITHOUT_BF16";
  if (std::getenv(kChild)) {
    CHECK_FALSE(cpu_has_bf16());
    return;
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  for (const char* isa : {"AVX2", "AVX512_CORE"})
    CHECK(std::system(concat(kChild, "=1 ONEDNN_MAX_CPU_ISA=", isa, " '", self,
                             "' --test-suite=kernels_matmul --test-case-exclude='*rate*' >/dev/null")
                          .c_str()) == 0);
}

TEST_SUITE_END();

} // namespace
} // namespace triax
