// SwiGLU and GELU.
#include "kernels/activation.h"
#include "tests/helpers.h"
#include "tests/kernel_check.h"

namespace triax {
namespace {

using namespace test;

constexpr Dtype kFloats[] = {Dtype::f32, Dtype::bf16};

/// Columns [first, first + count) of rows of `width`.
Vec part(const Vec& x, int64_t width, int64_t first, int64_t count) {
  Vec y;
  for (int64_t at = first; at < int64_t(x.size()); at += width)
    y.insert(y.end(), x.begin() + long(at), x.begin() + long(at + count));
  return y;
}

TEST_SUITE_BEGIN("kernels_activation");

TEST_CASE("swiglu: forward and backward") {
  for (const int64_t N : {0, 1, 2, 7, 67})
    for (const int64_t F : {1, 3, 8, 17, 64, 65, 127, 512, 1031})
      for (const Dtype dtype : kFloats)
        three_ways([&](KernelCheck& k) {
          if (k.emulated() && N * F > 20000) return;
          const Vec x = numbers(dtype, N * 2 * F, 1, 6), dy = numbers(dtype, N * F, 2);
          const Tensor xt = k.in(dtype, {N, 2 * F}, x), dyt = k.in(dtype, {N, F}, dy);
          const Tensor y = k.out(dtype, {N, F}), dx = k.out(dtype, {N, 2 * F});
          k.run(swiglu_forward(y, xt));
          k.run(swiglu_backward(dx, dyt, xt));
          const Vec gate = part(x, 2 * F, 0, F), up = part(x, 2 * F, F, F);
          const oracle::SwigluGrad grad = oracle::swiglu_backward(gate, up, dy);
          check_close("y", k.read(y), oracle::swiglu(gate, up), dtype);
          check_close("dgate", part(k.read(dx), 2 * F, 0, F), grad.dgate, dtype);
          check_close("dup", part(k.read(dx), 2 * F, F, F), grad.dup, dtype);
        });
}

TEST_CASE("gelu: forward and backward, in place as well") {
  for (const int64_t n : {0, 1, 2, 7, 63, 64, 65, 1021, 16385, 65537})
    for (const Dtype dtype : kFloats)
      for (const Gelu kind : {Gelu::tanh, Gelu::erf})
        three_ways([&](KernelCheck& k) {
          if (k.emulated() && n > 20000) return;
          const Vec x = numbers(dtype, n, 1, 6), dy = numbers(dtype, n, 2);
          const Tensor xt = k.in(dtype, {n}, x), dyt = k.in(dtype, {n}, dy), y = k.out(dtype, {n}),
                       dx = k.out(dtype, {n});
          k.run(gelu_forward(y, xt, kind));
          k.run(gelu_backward(dx, dyt, xt, kind));
          const bool tanh = kind == Gelu::tanh;
          const Vec slope = tanh ? oracle::gelu_tanh_backward(x, dy) : oracle::gelu_erf_backward(x, dy);
          check_close("y", k.read(y), tanh ? oracle::gelu_tanh(x) : oracle::gelu_erf(x), dtype);
          check_close("dx", k.read(dx), slope, dtype);
          k.run(gelu_backward(dyt, dyt, xt, kind));
          CHECK(k.read(dyt) == k.read(dx));
        });
}

TEST_CASE("gelu: known slopes, also far out") {
  const Vec x{-1e30, -1e10, -100, -20, -3, -1, 0, 1, 3, 20, 100, 1e10, 1e30};
  const Vec slopes{0, 0, 0, 0, -0.011584167, -0.082964084, 0.5, 1.082964084, 1.011584167, 1, 1, 1, 1};
  three_ways([&](KernelCheck& k) {
    const int64_t n = int64_t(x.size());
    const Tensor xt = k.in(Dtype::f32, {n}, x), ones = k.in(Dtype::f32, {n}, Vec(x.size(), 1)),
                 dx = k.out(Dtype::f32, {n}), erf = k.out(Dtype::f32, {n}), y = k.out(Dtype::f32, {n});
    k.run(gelu_backward(dx, ones, xt, Gelu::tanh));
    k.run(gelu_backward(erf, ones, xt, Gelu::erf));
    const Vec got = k.read(dx), got_erf = k.read(erf);
    for (size_t i = 0; i < x.size(); ++i) {
      CAPTURE(x[i]);
      CHECK(std::abs(got[i] - slopes[i]) < 1e-6);
      if (std::abs(x[i]) >= 20) CHECK(std::abs(got_erf[i] - slopes[i]) < 1e-6);
    }
    for (const Gelu kind : {Gelu::tanh, Gelu::erf}) {
      k.run(gelu_forward(y, xt, kind));
      const Vec value = k.read(y);
      for (size_t i = 0; i < x.size(); ++i)
        if (std::abs(x[i]) >= 20) CHECK(std::abs(value[i] - std::max(x[i], 0.0)) <= 1e-6 * std::max(x[i], 1.0));
    }
  });
}

TEST_CASE("gelu: the tails keep their relative precision") {
  Vec x;
  for (double v = -12; v <= 12; v += 0.01) x.push_back(double(float(v)));
  KernelCheck k(1);
  const int64_t n = int64_t(x.size());
  const Tensor xt = k.in(Dtype::f32, {n}, x), y = k.out(Dtype::f32, {n});
  const auto worst = [&](Gelu kind, const Vec& want) {
    k.run(gelu_forward(y, xt, kind));
    const Vec got = k.read(y);
    double error = 0;
    for (size_t i = 0; i < x.size(); ++i)
      if (std::abs(want[i]) > 1e-36) error = std::max(error, std::abs(got[i] / want[i] - 1));
    return error;
  };
  CHECK(worst(Gelu::erf, oracle::gelu_erf(x)) < 3e-5);
  CHECK(worst(Gelu::tanh, oracle::gelu_tanh(x)) < 3e-5);
}

TEST_CASE("activations: NaN stays NaN, infinity is not lost") {
  for (const Dtype dtype : kFloats)
    three_ways([&](KernelCheck& k) {
      const int64_t n = 200;
      Vec x(size_t(n), 0.5), dy(size_t(n), 1);
      x[3] = NAN;
      x[150] = -std::nan("");
      x[70] = HUGE_VAL;
      dy[90] = NAN;
      const Tensor xt = k.in(dtype, {n}, x), dyt = k.in(dtype, {n}, dy), y = k.out(dtype, {n});
      const auto nans = [&](std::initializer_list<size_t> where) {
        const Vec got = k.read(y);
        for (size_t i : where) CHECK(std::isnan(got[i]));
        CHECK(std::count_if(got.begin(), got.end(), [](double v) { return std::isnan(v); }) <= long(where.size()) + 1);
      };
      for (const Gelu kind : {Gelu::tanh, Gelu::erf}) {
        k.run(gelu_forward(y, xt, kind));
        nans({3, 150});
        CHECK(k.read(y)[70] == HUGE_VAL);
        k.run(gelu_backward(y, dyt, xt, kind));
        nans({3, 90, 150});
      }
      const Tensor pairs = k.in(dtype, {1, n}, x), half = k.out(dtype, {1, n / 2}), whole = k.out(dtype, {1, n});
      k.run(swiglu_forward(half, pairs)); // element 150 is up 50
      const Vec got = k.read(half);
      for (size_t i : {3, 50}) CHECK(std::isnan(got[i]));
      CHECK(got[70] == HUGE_VAL);
      const Tensor ones = k.in(dtype, {1, n / 2}, Vec(size_t(n) / 2, 1));
      k.run(swiglu_backward(whole, ones, pairs));
      for (size_t i : {3, 50, 103}) CHECK(std::isnan(k.read(whole)[i]));
    });
}

TEST_CASE("activations: operands that do not fit are refused") {
  KernelCheck k(1);
  const Tensor y = k.out(Dtype::f32, {2, 3}), x = k.out(Dtype::f32, {2, 6}), b = k.out(Dtype::bf16, {2, 3});
  CHECK(has(error_of([&] { swiglu_forward(x, x); }), "swiglu"));
  CHECK(has(error_of([&] { swiglu_backward(y, y, x); }), "dx is f32[2, 3]"));
  CHECK(has(error_of([&] { gelu_forward(b, y, Gelu::erf); }), "y is bf16[2, 3]"));
  CHECK(has(error_of([&] { gelu_backward(y, x, y, Gelu::erf); }), "dy is f32[2, 6]"));
}

TEST_SUITE_END();

} // namespace
} // namespace triax
