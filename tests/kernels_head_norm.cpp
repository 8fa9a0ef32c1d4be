// RMSNorm of the heads of queries and keys, in place in the rows of a fused projection.
#include "kernels/head_norm.h"
#include "kernels/partial_sums.h"
#include "tests/helpers.h"
#include "tests/kernel_check.h"

namespace triax {
namespace {

using namespace test;

constexpr double kEps = 0x1p-10;

struct Shape {
  int64_t N, H, G, D;
  int64_t columns() const { return (H + G) * D; }
};

/// Heads [first, first + count) of x[N, (H + G) * D] as rows of their own: [N * count, D].
Vec rows_of(const Shape& s, const Vec& x, int64_t first, int64_t count) {
  Vec rows;
  for (int64_t n = 0; n < s.N; ++n) {
    const auto begin = x.begin() + n * s.columns() + first * s.D;
    rows.insert(rows.end(), begin, begin + count * s.D);
  }
  return rows;
}

/// The inverse of rows_of for query and key rows.
Vec joined(const Shape& s, const Vec& queries, const Vec& keys) {
  Vec x;
  for (int64_t n = 0; n < s.N; ++n) {
    x.insert(x.end(), queries.begin() + n * s.H * s.D, queries.begin() + (n + 1) * s.H * s.D);
    x.insert(x.end(), keys.begin() + n * s.G * s.D, keys.begin() + (n + 1) * s.G * s.D);
  }
  return x;
}

Vec half(const Vec& weight, bool second) {
  const auto middle = weight.begin() + long(weight.size() / 2);
  return second ? Vec(middle, weight.end()) : Vec(weight.begin(), middle);
}

Vec want_forward(const Shape& s, const Vec& x, const Vec& weight) {
  const auto part = [&](int64_t first, int64_t count, bool keys) {
    return count * s.N == 0 ? Vec{} : oracle::rms_norm(rows_of(s, x, first, count), {}, half(weight, keys), kEps).y;
  };
  return joined(s, part(0, s.H, false), part(s.H, s.G, true));
}

void check(KernelCheck& k, Dtype dtype, const Shape& s, int64_t gap) {
  const Vec x = numbers(dtype, s.N * s.columns(), 1), weight = numbers(dtype, 2 * s.D, 2),
            dy = numbers(dtype, s.N * s.columns(), 3), start = numbers(Dtype::f32, 2 * s.D, 4);
  const Tensor in = k.in_rows(dtype, s.N, s.columns(), gap, x), before = k.out(dtype, {s.N, s.columns()}),
               w = k.in(dtype, {2 * s.D}, weight);
  k.run(head_norm_forward({s.H, float(kEps), in, before, w}));
  if (s.N > 0) {
    CHECK(k.read(before) == x);
    check_close("y", k.read(in), want_forward(s, x, weight), dtype, 2);
  }

  const Tensor dx = k.in_rows(dtype, s.N, s.columns(), gap, dy), dweight = k.in(Dtype::f32, {2 * s.D}, start);
  k.run(head_norm_backward({s.H, float(kEps), dx, dweight, before, w}));
  Vec want_dweight = start, want_dx[2];
  for (const bool keys : {false, true}) {
    const int64_t first = keys ? s.H : 0, count = keys ? s.G : s.H;
    if (count * s.N == 0) continue;
    const auto gradient = oracle::rms_norm_backward(rows_of(s, x, first, count), half(weight, keys),
                                                    rows_of(s, dy, first, count), {}, kEps);
    want_dx[keys] = gradient.dx;
    for (int64_t i = 0; i < s.D; ++i) want_dweight[size_t(keys * s.D + i)] += gradient.dweight[size_t(i)];
  }
  check_close("dweight", k.read(dweight), want_dweight, Dtype::f32, 4);
  if (s.N > 0) check_close("dx", k.read(dx), joined(s, want_dx[0], want_dx[1]), dtype, 4);
}

TEST_SUITE_BEGIN("kernels_head_norm");

TEST_CASE("head_norm: forward and backward in the columns of wider rows") {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const auto& [H, G] : {std::pair<int64_t, int64_t>{1, 1}, {5, 2}, {3, 0}, {0, 2}})
      for (const int64_t N : {0, 1, 67})
        for (const int64_t D : {1, 6, 64, 127, 128})
          on_both_teams([&](KernelCheck& k) {
            CAPTURE(N);
            CAPTURE(H);
            CAPTURE(G);
            CAPTURE(D);
            check(k, dtype, {N, H, G, D}, N % 2 ? G * D : 0);
          });
}

TEST_CASE("head_norm: groups of 8, 16 and 32 lanes and single elements, also emulated") {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const int64_t D : {22, 64, 128})
      three_ways([&](KernelCheck& k) {
        CAPTURE(D);
        check(k, dtype, {3, 19, 2, D}, 2 * D);
      });
}

TEST_CASE("head_norm: more rows than partial sums") {
  three_ways([&](KernelCheck& k) { check(k, Dtype::bf16, {partial_sums(false, INT64_MAX) + 3, 2, 1, 8}, 8); });
}

TEST_CASE("head_norm: the gradient is that of the forward pass") {
  const Shape s{2, 2, 1, 6};
  const Vec x = numbers(Dtype::f32, s.N * s.columns(), 1), weight = numbers(Dtype::f32, 2 * s.D, 2),
            dy = numbers(Dtype::f32, s.N * s.columns(), 3);
  KernelCheck k(1);
  const Tensor before = k.in(Dtype::f32, {s.N, s.columns()}, x), w = k.in(Dtype::f32, {2 * s.D}, weight),
               dx = k.in(Dtype::f32, {s.N, s.columns()}, dy),
               dweight = k.in(Dtype::f32, {2 * s.D}, Vec(size_t(2 * s.D), 0));
  k.run(head_norm_backward({s.H, float(kEps), dx, dweight, before, w}));
  const auto loss = [&](const Vec& at, const Vec& of) {
    const Vec y = want_forward(s, at, of);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  const double step = 1e-5;
  const auto slope = [&](Vec of, size_t i, const auto& f) {
    of[i] += step;
    const double up = f(of);
    of[i] -= 2 * step;
    return (up - f(of)) / (2 * step);
  };
  const Vec got = k.read(dx), got_weight = k.read(dweight);
  for (size_t i = 0; i < x.size(); ++i)
    CHECK(got[i] == doctest::Approx(slope(x, i, [&](const Vec& v) { return loss(v, weight); })).epsilon(1e-4));
  for (size_t i = 0; i < weight.size(); ++i)
    CHECK(got_weight[i] == doctest::Approx(slope(weight, i, [&](const Vec& v) { return loss(x, v); })).epsilon(1e-4));
}

TEST_CASE("head_norm: a head of zeros gives zeros, NaN stays in its head") {
  KernelCheck k(1);
  const int64_t D = 16;
  Vec x(size_t(3 * D), 0);
  for (size_t i = size_t(D); i < 2 * size_t(D); ++i) x[i] = double(i % 5) + 1;
  x[2 * size_t(D) + 3] = NAN;
  const Tensor in = k.in(Dtype::f32, {1, 3 * D}, x);
  k.run(head_norm_forward(
      {2, float(kEps), in, k.out(Dtype::f32, {1, 3 * D}), k.in(Dtype::f32, {2 * D}, Vec(size_t(2 * D), 1))}));
  const Vec y = k.read(in);
  for (size_t i = 0; i < y.size(); ++i) {
    if (i < size_t(D)) CHECK(y[i] == 0);
    if (i >= size_t(D) && i < 2 * size_t(D)) CHECK(y[i] > 0);
    if (i >= 2 * size_t(D)) CHECK(std::isnan(y[i]));
  }
}

TEST_CASE("head_norm: operands that do not fit are refused") {
  KernelCheck k(1);
  const Tensor x = k.out(Dtype::f32, {3, 12}), before = k.out(Dtype::f32, {3, 12}), w = k.out(Dtype::f32, {8}),
               odd = k.out(Dtype::f32, {7}), wide = k.out(Dtype::f32, {10}), narrow = k.out(Dtype::bf16, {3, 12});
  CHECK(has(error_of([&] { head_norm_forward({4, 1e-6f, x, before, w}); }), "4 query heads of width 4"));
  CHECK(has(error_of([&] { head_norm_forward({2, 1e-6f, x, before, odd}); }), "weight is f32[7]"));
  CHECK(has(error_of([&] { head_norm_forward({2, 1e-6f, x, before, wide}); }), "query heads of width 5"));
  CHECK(has(error_of([&] { head_norm_forward({2, 1e-6f, x, narrow, w}); }), "before is bf16[3, 12]"));
  CHECK(has(error_of([&] { head_norm_backward({2, 1e-6f, x, odd, before, w}); }), "dweight is f32[7]"));
}

TEST_SUITE_END();

} // namespace
} // namespace triax
