// RMSNorm and LayerNorm with their residual, forward and backward.
#include "kernels/norm.h"
#include "tests/helpers.h"
#include "tests/kernel_check.h"

namespace triax {
namespace {

using namespace test;

constexpr double kEps = 0x1p-10;

oracle::Norm forward(NormKind kind, const Vec& x, const Vec& residual, const Vec& weight, const Vec& bias) {
  return kind == NormKind::rms ? oracle::rms_norm(x, residual, weight, kEps)
                               : oracle::layer_norm(x, residual, weight, bias, kEps);
}

Vec statistics_of(const oracle::Norm& norm) {
  Vec s;
  for (size_t n = 0; n < norm.rstd.size(); ++n) {
    s.push_back(norm.mean.empty() ? 0 : norm.mean[n]);
    s.push_back(norm.rstd[n]);
  }
  return s;
}

Vec plus(Vec a, const Vec& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

void check_forward(KernelCheck& k, NormKind kind, Dtype dtype, int64_t N, int64_t C) {
  const Vec x = numbers(dtype, N * C, 1), residual = numbers(dtype, N * C, 2), weight = numbers(dtype, C, 3),
            bias = kind == NormKind::layer && C % 2 ? numbers(dtype, C, 4) : Vec{};
  NormForward f;
  f.kind = kind;
  f.eps = float(kEps);
  f.y = k.out(dtype, {N, C});
  f.statistics = k.out(Dtype::f32, {N, 2});
  f.x = k.in(dtype, {N, C}, x);
  f.weight = k.in(dtype, {C}, weight);
  if (!bias.empty()) f.bias = k.in(dtype, {C}, bias);
  k.run(norm_forward(f));
  if (N > 0) {
    const oracle::Norm want = forward(kind, x, {}, weight, bias);
    check_close("y", k.read(f.y), want.y, dtype, 2);
    check_close("statistics", k.read(f.statistics), statistics_of(want), Dtype::f32);
  }
  f.sum = k.out(dtype, {N, C});
  f.residual = k.in(dtype, {N, C}, residual);
  k.run(norm_forward(f));
  if (N == 0) return;
  const Vec sum = k.read(f.sum);
  CHECK(sum == rounded(dtype, plus(x, residual)));
  const oracle::Norm want = forward(kind, sum, {}, weight, bias); // what is stored is what is normalised
  check_close("y of sum", k.read(f.y), want.y, dtype, 2);
  check_close("statistics of sum", k.read(f.statistics), statistics_of(want), Dtype::f32);
}

void check_backward(KernelCheck& k, NormKind kind, Dtype dtype, int64_t N, int64_t C) {
  const bool layer = kind == NormKind::layer;
  const Vec x = numbers(dtype, N * C, 1), weight = numbers(dtype, C, 3), dy = numbers(dtype, N * C, 5),
            dresidual = numbers(dtype, N * C, 6), before = numbers(Dtype::f32, C, 7);
  NormBackward b;
  b.kind = kind;
  b.dx = k.out(dtype, {N, C});
  b.dweight = k.in(Dtype::f32, {C}, before);
  if (layer && C % 2) b.dbias = k.in(Dtype::f32, {C}, before);
  b.dy = k.in(dtype, {N, C}, dy);
  b.x = k.in(dtype, {N, C}, x);
  b.statistics = k.in(Dtype::f32, {N, 2}, N ? statistics_of(forward(kind, x, {}, weight, {})) : Vec{});
  b.weight = k.in(dtype, {C}, weight);
  k.run(norm_backward(b));
  const auto gradient = [&](const Vec& other) {
    return layer ? oracle::layer_norm_backward(x, weight, dy, other, kEps)
                 : oracle::rms_norm_backward(x, weight, dy, other, kEps);
  };
  if (N > 0) check_close("dx", k.read(b.dx), gradient({}).dx, dtype, 4);
  b.dresidual = k.in(dtype, {N, C}, dresidual);
  k.run(norm_backward(b));
  if (N > 0) {
    const oracle::NormGrad want = gradient(dresidual);
    check_close("dx and dresidual", k.read(b.dx), want.dx, dtype, 4);
    check_close("dweight twice", k.read(b.dweight), plus(plus(before, want.dweight), want.dweight), Dtype::f32, 4);
    if (!b.dbias.empty())
      check_close("dbias twice", k.read(b.dbias), plus(plus(before, want.dbias), want.dbias), Dtype::f32, 4);
  }
  const Vec apart = k.read(b.dx);
  b.dx = b.dresidual;
  k.run(norm_backward(b));
  CHECK(k.read(b.dx) == apart);
}

TEST_SUITE_BEGIN("kernels_norm");

TEST_CASE("rmsnorm and layernorm: forward and backward on ragged rows") {
  for (const NormKind kind : {NormKind::rms, NormKind::layer})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
      for (const int64_t N : {0, 1, 7, 67})
        for (const int64_t C : {3, 17, 64, 65, 127, 1031})
          three_ways([&](KernelCheck& k) {
            if (k.emulated() && N * C > 10000) return;
            CAPTURE(N);
            CAPTURE(C);
            check_forward(k, kind, dtype, N, C);
            check_backward(k, kind, dtype, N, C);
          });
}

TEST_CASE("rmsnorm: a row of zeros and a weight of zero give numbers, NaN stays NaN") {
  KernelCheck k(1);
  const int64_t C = 70;
  Vec x(size_t(3 * C), 0);
  for (size_t i = size_t(C); i < 2 * size_t(C); ++i) x[i] = double(i % 7);
  x[2 * size_t(C) + 9] = NAN;
  NormForward f;
  f.kind = NormKind::rms;
  f.eps = float(kEps);
  f.y = k.out(Dtype::f32, {3, C});
  f.statistics = k.out(Dtype::f32, {3, 2});
  f.x = k.in(Dtype::f32, {3, C}, x);
  f.weight = k.in(Dtype::f32, {C}, Vec(size_t(C), 0));
  k.run(norm_forward(f));
  const Vec y = k.read(f.y);
  for (size_t i = 0; i < y.size(); ++i) CHECK((i < 2 * size_t(C) ? y[i] == 0 : std::isnan(y[i])));
}

TEST_CASE("layernorm: a large mean does not cancel") {
  KernelCheck k(1);
  const int64_t C = 512;
  Vec x = numbers(Dtype::f32, C, 1);
  for (double& v : x) v = double(float(v + 1000));
  NormForward f;
  f.kind = NormKind::layer;
  f.eps = 1e-5f;
  f.y = k.out(Dtype::f32, {1, C});
  f.statistics = k.out(Dtype::f32, {1, 2});
  f.x = k.in(Dtype::f32, {1, C}, x);
  f.weight = k.in(Dtype::f32, {C}, Vec(size_t(C), 1));
  k.run(norm_forward(f));
  const oracle::Norm want = oracle::layer_norm(x, {}, Vec(size_t(C), 1), {}, 1e-5);
  CHECK(std::abs(k.read(f.statistics)[1] / want.rstd[0] - 1) < 1e-5);
  const double bound = double(C) * 0x1p-24 * 1000 * want.rstd[0]; // of a sum of C terms in f32, in any order
  const Vec y = k.read(f.y);
  for (size_t i = 0; i < y.size(); ++i) CHECK(std::abs(y[i] - want.y[i]) < bound);
}

TEST_CASE("norm: operands that do not fit are refused") {
  KernelCheck k(1);
  NormForward f;
  f.kind = NormKind::rms;
  f.y = f.x = k.out(Dtype::f32, {3, 5});
  f.statistics = k.out(Dtype::f32, {3, 2});
  f.weight = k.out(Dtype::f32, {4});
  CHECK(has(error_of([&] { norm_forward(f); }), "weight is f32[4]"));
  f.weight = k.out(Dtype::f32, {5});
  f.sum = f.x;
  CHECK(has(error_of([&] { norm_forward(f); }), "a residual and its sum come together"));
}

TEST_SUITE_END();

} // namespace
} // namespace triax
