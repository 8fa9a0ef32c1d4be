// Rotary position embedding.
#include "kernels/rope.h"
#include "tests/helpers.h"
#include "tests/kernel_check.h"

namespace triax {
namespace {

using namespace test;

constexpr double kScale = 1.25;

Vec frequencies(int64_t half) {
  Vec f;
  for (int64_t i = 0; i < half; ++i) f.push_back(std::pow(10000.0, -double(i) / double(half)));
  return f;
}

/// [T, 2 half]: cosines beside sines.
Vec table(int64_t T, const Vec& frequency) {
  Vec t;
  for (int64_t p = 0; p < T; ++p) {
    for (double f : frequency) t.push_back(kScale * std::cos(double(p) * f));
    for (double f : frequency) t.push_back(kScale * std::sin(double(p) * f));
  }
  return t;
}

TEST_SUITE_BEGIN("kernels_rope");

TEST_CASE("rope: forward and inverse, on columns of wider rows") {
  for (const int64_t N : {0, 1, 6, 67})
    for (const int64_t heads : {1, 3})
      for (const int64_t D : {2, 6, 16, 64, 126, 130})
        for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
          three_ways([&](KernelCheck& k) {
            const int64_t T = N == 6 ? 3 : N == 67 ? 30 : 5; // sequences follow each other
            const Vec x = numbers(dtype, N * heads * D, 1), frequency = frequencies(D / 2);
            Ints positions;
            for (int64_t n = 0; n < N; ++n) positions.push_back(int32_t(n % T));
            const Tensor t = k.in(Dtype::f32, {T, D}, table(T, frequency));
            for (const bool inverse : {false, true})
              for (const int64_t gap : {0, 7}) {
                const Tensor y = k.in_rows(dtype, N, heads * D, gap, x);
                k.run(rope(y, t, D, inverse));
                if (N == 0) continue;
                const Vec want = inverse ? oracle::rope_backward(x, positions, frequency, kScale)
                                         : oracle::rope(x, positions, frequency, kScale);
                check_close("y", k.read(y), want, dtype);
              }
          });
}

TEST_CASE("rope: operands that do not fit are refused") {
  KernelCheck k(1);
  const Tensor x = k.out(Dtype::f32, {2, 12}), t = k.out(Dtype::f32, {4, 6}), wrong = k.out(Dtype::bf16, {4, 6});
  CHECK(has(error_of([&] { rope(x, t, 5, false); }), "heads of width 5"));
  CHECK(has(error_of([&] { rope(x, t, 8, false); }), "heads of width 8"));
  CHECK(has(error_of([&] { rope(x, t, 4, false); }), "table is f32[4, 6]"));
  CHECK(has(error_of([&] { rope(x, wrong, 6, false); }), "table is bf16[4, 6]"));
}

TEST_SUITE_END();

} // namespace
} // namespace triax
