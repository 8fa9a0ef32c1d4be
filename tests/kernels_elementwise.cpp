// fill, add, cast, copy, column_sum and normal_fill.
#include "kernels/elementwise.h"
#include "tests/helpers.h"
#include "tests/kernel_check.h"

namespace triax {
namespace {

using namespace test;

const int64_t kSizes[] = {0, 1, 2, 7, 63, 64, 65, 1021, 16384, 16385, 65537};
constexpr Dtype kFloats[] = {Dtype::f32, Dtype::bf16};

TEST_SUITE_BEGIN("kernels_elementwise");

TEST_CASE("fill: all of y and no more") {
  for (const int64_t n : kSizes)
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::i32})
      three_ways([&](KernelCheck& k) {
        if (k.emulated() && n > 20000) return;
        const Tensor y = k.out(dtype, {n});
        k.run(fill(y, -3.0f));
        CHECK(k.read(y) == Vec(size_t(n), -3.0));
      });
}

TEST_CASE("add: in place as well") {
  for (const int64_t n : kSizes)
    for (const Dtype dtype : kFloats)
      three_ways([&](KernelCheck& k) {
        if (k.emulated() && n > 20000) return;
        const Vec a = numbers(dtype, n, 1), b = numbers(dtype, n, 2);
        Vec want(static_cast<size_t>(n));
        for (size_t i = 0; i < want.size(); ++i) want[i] = rounded(dtype, double(float(a[i]) + float(b[i])));
        const Tensor x = k.in(dtype, {n}, a), z = k.in(dtype, {n}, b), y = k.out(dtype, {n});
        k.run(add(y, x, z));
        CHECK(k.read(y) == want);
        k.run(add(x, x, z));
        CHECK(k.read(x) == want);
        const Tensor w = k.in(dtype, {n}, a);
        k.run(add(z, w, z));
        CHECK(k.read(z) == want);
        k.run(add(w, w, w));
        for (size_t i = 0; i < want.size(); ++i) want[i] = 2 * a[i];
        CHECK(k.read(w) == want);
      });
}

TEST_CASE("cast: to nearest even, infinities and NaN kept") {
  for (const int64_t n : kSizes)
    three_ways([&](KernelCheck& k) {
      if (k.emulated() && n > 20000) return;
      Vec x = numbers(Dtype::f32, n, 1, 1000);
      const double special[] = {1.00390625, 1.01171875, HUGE_VAL, -HUGE_VAL, NAN, 3.4028234e38, 1e-40, -0.0};
      for (size_t i = 0; i < x.size() && i < std::size(special); ++i) x[i] = special[i];
      const Tensor from = k.in(Dtype::f32, {n}, x), narrow = k.out(Dtype::bf16, {n}), back = k.out(Dtype::f32, {n});
      k.run(cast(narrow, from));
      k.run(cast(back, narrow));
      Vec want = rounded(Dtype::bf16, x);
      check_close("narrow", k.read(narrow), want, Dtype::f32, 0);
      check_close("back", k.read(back), want, Dtype::f32, 0);
    });
}

TEST_CASE("copy: the same bytes") {
  for (const int64_t n : kSizes) {
    KernelCheck k(1);
    const Vec x = numbers(Dtype::f32, n, 1);
    const Tensor from = k.in(Dtype::f32, {n}, x), to = k.out(Dtype::f32, {n});
    k.run(copy(to, from));
    CHECK(k.read(to) == x);
  }
}

TEST_CASE("column_sum: adds to what is there") {
  for (const int64_t rows : {0, 1, 2, 63, 64, 65, 131, 1000})
    for (const int64_t columns : {1, 3, 64, 65, 127, 2048, 2051})
      for (const Dtype dtype : kFloats)
        three_ways([&](KernelCheck& k) {
          if (rows * columns > (k.emulated() ? 20000 : 300000)) return;
          const Vec x = numbers(dtype, rows * columns, 1), before = numbers(Dtype::f32, columns, 2);
          const Tensor t = k.in_rows(dtype, rows, columns, rows % 2 ? 5 : 0, x),
                       out = k.in(Dtype::f32, {columns}, before);
          k.run(column_sum(out, t));
          Vec want = before;
          const Vec sums = oracle::column_sum(x, int(columns));
          for (size_t c = 0; c < want.size(); ++c) want[c] += sums[c];
          check_close("sum", k.read(out), want, Dtype::f32);
        });
}

TEST_CASE("normal_fill: the same values wherever an element lies") {
  const int64_t n = 1000;
  for (const Dtype dtype : kFloats)
    three_ways([&](KernelCheck& k) {
      const Tensor whole = k.out(dtype, {n}), again = k.out(dtype, {n});
      k.run(normal_fill(whole, 0.02f, 7, 3, 0));
      for (const int64_t cut : {0, 1, 2, 3, 5, 64, 333, 1000}) {
        k.run(normal_fill(again, 1.0f, 8, 3, 0)); // other values
        CHECK(k.read(again) != k.read(whole));
        const Tensor head = k.out(dtype, {cut}), tail = k.out(dtype, {n - cut});
        k.run(normal_fill(head, 0.02f, 7, 3, 0));
        k.run(normal_fill(tail, 0.02f, 7, 3, cut));
        Vec joined = k.read(head), rest = k.read(tail);
        joined.insert(joined.end(), rest.begin(), rest.end());
        CHECK(joined == k.read(whole));
      }
      k.run(normal_fill(again, 0.02f, 7, 4, 0));
      CHECK(k.read(again) != k.read(whole));
    });
}

TEST_CASE("normal_fill: mean, deviation, tails and neighbours of a normal distribution") {
  KernelCheck k(2);
  const int64_t n = 4000000;
  const Tensor y = k.out(Dtype::f32, {n});
  k.run(normal_fill(y, 1.0f, 20240521, 0, 1));
  const Vec z = k.read(y);
  double sum = 0, squares = 0, fourth = 0, neighbours = 0, largest = 0;
  int64_t beyond[5] = {};
  for (size_t i = 0; i < z.size(); ++i) {
    sum += z[i];
    squares += z[i] * z[i];
    fourth += z[i] * z[i] * z[i] * z[i];
    if (i > 0) neighbours += z[i] * z[i - 1];
    for (int s = 0; s < 5; ++s) beyond[s] += std::abs(z[i]) > s + 0.5;
    largest = std::max(largest, std::abs(z[i]));
  }
  const double root = std::sqrt(double(n)); // all bounds are five standard errors
  CHECK(std::abs(sum / double(n)) < 5 / root);
  CHECK(std::abs(squares / double(n) - 1) < 5 * std::sqrt(2.0) / root);
  CHECK(std::abs(fourth / double(n) - 3) < 5 * std::sqrt(96.0) / root);
  CHECK(std::abs(neighbours / double(n)) < 5 / root);
  for (int s = 0; s < 5; ++s) {
    const double p = std::erfc((s + 0.5) / std::sqrt(2.0));
    CHECK(std::abs(double(beyond[s]) - p * double(n)) < 5 * std::sqrt(p * (1 - p) * double(n)) + 1);
  }
  CHECK(largest > 4.8);
  CHECK(largest < 6.8);
}

/// In f32, as a knock-out tournament whose players keep their order and whose last may pass a round.
double tree_sum(std::vector<float> x) {
  for (size_t step = 1; step < x.size(); step *= 2)
    for (size_t i = 0; i + step < x.size(); i += 2 * step) x[i] += x[i + step];
  return double(x[0]);
}

TEST_CASE("sum_pieces: over a fixed tree, to the bit") {
  for (const int64_t pieces : {1, 2, 3, 4, 7, 8, 16})
    for (const int64_t n : {0, 1, 7, 64, 1021, 1024})
      for (const Dtype dtype : kFloats)
        three_ways([&](KernelCheck& k) {
          const Vec x = numbers(dtype, pieces * n, 1), before = numbers(Dtype::f32, n, 2);
          const Tensor p = k.in(dtype, {pieces, n}, x), out = k.out(dtype, {n});
          k.run(sum_pieces(out, p, false));
          Vec want;
          for (int64_t i = 0; i < n; ++i) {
            std::vector<float> parts;
            for (int64_t r = 0; r < pieces; ++r) parts.push_back(float(x[size_t(r * n + i)]));
            want.push_back(tree_sum(parts));
          }
          CHECK(k.read(out) == rounded(dtype, want));
          if (dtype != Dtype::f32) return;
          const Tensor sum = k.in(dtype, {n}, before);
          k.run(sum_pieces(sum, p, true));
          for (size_t i = 0; i < want.size(); ++i) want[i] = double(float(before[i]) + float(want[i]));
          CHECK(k.read(sum) == want);
        });
}

TEST_CASE("sum_pieces: a sum of four lanes, then of two, is the sum of eight") {
  KernelCheck k(1);
  const int64_t n = 100;
  const Vec x = numbers(Dtype::f32, 8 * n, 1);
  const auto sum = [&](const Vec& parts) {
    const Tensor out = k.out(Dtype::f32, {n});
    k.run(sum_pieces(out, k.in(Dtype::f32, {int64_t(parts.size()) / n, n}, parts), false));
    return k.read(out);
  };
  Vec halves = sum(Vec(x.begin(), x.begin() + 4 * n)), second = sum(Vec(x.begin() + 4 * n, x.end()));
  halves.insert(halves.end(), second.begin(), second.end());
  CHECK(sum(halves) == sum(x));
}

TEST_CASE("add_bias: to every row") {
  for (const int64_t C : {1, 3, 64, 65, 1030})
    for (const Dtype dtype : kFloats)
      three_ways([&](KernelCheck& k) {
        const int64_t N = 5;
        const Vec y = numbers(dtype, N * C, 1), b = numbers(dtype, C, 2);
        const Tensor t = k.in(dtype, {N, C}, y);
        k.run(add_bias(t, k.in(dtype, {C}, b)));
        Vec want;
        for (size_t i = 0; i < y.size(); ++i) want.push_back(double(float(y[i]) + float(b[i % size_t(C)])));
        CHECK(k.read(t) == rounded(dtype, want));
      });
}

TEST_CASE("normal_fill: a part of a matrix holds what the whole has there") {
  const int64_t R = 13, C = 301;
  three_ways([&](KernelCheck& k) {
    const Tensor whole = k.out(Dtype::f32, {R, C});
    k.run(normal_fill(whole, 0.5f, 7, 3, 0, C));
    const Vec all = k.read(whole);
    for (const auto& [row, column, rows, columns] :
         {std::array<int64_t, 4>{0, 0, R, 1}, {2, 5, 7, 150}, {12, 300, 1, 1}, {3, 1, 10, 299}}) {
      const Tensor part = k.out(Dtype::f32, {rows, columns});
      k.run(normal_fill(part, 0.5f, 7, 3, row * C + column, C));
      Vec want;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) want.push_back(all[size_t((row + r) * C + column + c)]);
      CHECK(k.read(part) == want);
    }
  });
}

TEST_CASE("elementwise: operands that do not fit are refused") {
  KernelCheck k(1);
  const Tensor x = k.out(Dtype::f32, {6}), y = k.out(Dtype::bf16, {6}), z = k.out(Dtype::f32, {5}),
               m = k.out(Dtype::f32, {2, 6}), i = k.out(Dtype::i32, {6});
  CHECK(has(error_of([&] { add(x, x, z); }), "add: f32[5]"));
  CHECK(has(error_of([&] { add(x, x, y); }), "add: bf16[6]"));
  CHECK(has(error_of([&] { add(i, i, i); }), "add: y is i32[6]"));
  CHECK(has(error_of([&] { cast(x, x); }), "cast"));
  CHECK(has(error_of([&] { copy(y, x); }), "copy"));
  CHECK(has(error_of([&] { fill(m.slice(1, 0, 3), 0); }), "fill"));
  CHECK(has(error_of([&] { column_sum(z, m); }), "column_sum: out is f32[5]"));
  CHECK(has(error_of([&] { normal_fill(i, 1, 0, 0, 0); }), "normal_fill"));
  CHECK(has(error_of([&] { sum_pieces(z, m, false); }), "sum_pieces: pieces are f32[2, 6]"));
  CHECK(has(error_of([&] { sum_pieces(y, k.out(Dtype::bf16, {2, 6}), true); }), "accumulates in f32"));
  CHECK(has(error_of([&] { add_bias(m, z); }), "add_bias: bias is f32[5]"));
}

TEST_SUITE_END();

} // namespace
} // namespace triax
