// The optimizer, and what surrounds it.
#include "kernels/adamw.h"
#include "kernels/step_state.h"
#include "tests/helpers.h"
#include "tests/kernel_check.h"

namespace triax {
namespace {

using namespace test;

constexpr double kBeta1 = 0.875, kBeta2 = 0.9375, kEps = 0x1p-20, kDecay = 0.125, kRate = 0.0078125, kScale = 0.5;

StepState state_of(int64_t step, uint64_t seed = 11) {
  return {.seed = seed,
          .step = step,
          .learning_rate = float(kRate),
          .moment1_scale = float(1 / (1 - std::pow(kBeta1, step))),
          .moment2_scale = float(1 / (1 - std::pow(kBeta2, step)))};
}

constexpr int64_t kNoneShared = int64_t(1) << 40, kAllDecay = int64_t(1) << 40;

struct Range {
  Tensor weights, master, moment1, moment2, gradient, state, scalars;
  Op op(int64_t first, bool stochastic, int64_t shared_from = kNoneShared, int64_t decay_to = kAllDecay) const {
    return adamw({float(kBeta1), float(kBeta2), float(kEps), float(kDecay), first, decay_to, shared_from, stochastic,
                  weights, master, moment1, moment2, gradient, state, scalars});
  }
};

/// n parameters of a larger range, from its element `first` on.
Range range_of(KernelCheck& k, Dtype dtype, int64_t n, int64_t first, const StepState& state, double scale = kScale) {
  const auto part = [&](uint64_t seed) {
    const Vec all = numbers(Dtype::f32, first + n, seed);
    return Vec(all.begin() + long(first), all.end());
  };
  Vec second = part(3);
  for (double& v : second) v = double(float(v * v));
  Range r;
  r.master = k.in(Dtype::f32, {n}, part(1));
  r.weights = dtype == Dtype::f32 ? r.master : k.out(dtype, {n});
  if (dtype == Dtype::f32) r.master = {};
  r.moment1 = k.in(Dtype::f32, {n}, part(2));
  r.moment2 = k.in(Dtype::f32, {n}, second);
  r.gradient = k.in(Dtype::f32, {n}, part(4));
  r.state = k.bytes(state);
  r.scalars = k.in(Dtype::f32, {kStepScalars}, {0, 0, 0, scale});
  return r;
}

TEST_SUITE_BEGIN("kernels_adamw");

TEST_CASE("adamw: as the oracle, weights rounded to nearest") {
  for (const int64_t n : {0, 1, 2, 7, 8, 127, 128, 129, 1021, 16385, 65537})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
      for (const int64_t step : {1, 1000})
        three_ways([&](KernelCheck& k) {
          const Range r = range_of(k, dtype, n, 0, state_of(step));
          const Tensor held = dtype == Dtype::f32 ? r.weights : r.master;
          Vec w = k.read(held), m = k.read(r.moment1), v = k.read(r.moment2);
          k.run(r.op(0, false));
          oracle::adamw({step, kRate, kBeta1, kBeta2, kEps, kDecay, kScale}, k.read(r.gradient), w, m, v);
          check_close("weights", k.read(held), w, Dtype::f32);
          check_close("moment1", k.read(r.moment1), m, Dtype::f32);
          check_close("moment2", k.read(r.moment2), v, Dtype::f32);
          CHECK(k.read(r.weights) == rounded(dtype, k.read(held)));
        });
}

TEST_CASE("adamw: stochastic rounding gives one of the two neighbours, without bias") {
  for (const int64_t n : {1, 7, 127, 128, 129, 40000})
    three_ways([&](KernelCheck& k) {
      const Range r = range_of(k, Dtype::bf16, n, 0, state_of(3));
      k.run(r.op(0, true));
      const Vec w = k.read(r.master), got = k.read(r.weights);
      double bias = 0, moved = 0;
      for (size_t i = 0; i < w.size(); ++i) {
        const uint32_t low = bits_of_float(float(w[i])) & 0xffff0000u;
        const double below = double(float_of_bits(low)), above = double(float_of_bits(low + 0x10000u));
        REQUIRE((got[i] == below || got[i] == above));
        if (below == above) continue;
        bias += (got[i] - w[i]) / (above - below);
        moved += got[i] != rounded(Dtype::bf16, w[i]);
      }
      if (n == 40000) CHECK(std::abs(bias) < 5 * std::sqrt(double(n) / 6)); // variance p (1 - p), 1/6 on average
      if (n == 40000) CHECK(std::abs(moved / double(n) - 0.25) < 0.02);
    });
}

TEST_CASE("adamw: any cut of the range gives the same bits") {
  const int64_t n = 1000;
  three_ways([&](KernelCheck& k) {
    const Range whole = range_of(k, Dtype::bf16, n, 0, state_of(5));
    k.run(whole.op(0, true));
    const Vec want = k.read(whole.weights);
    for (const int64_t cut : {1, 3, 8, 125, 128, 999}) {
      const Range tail = range_of(k, Dtype::bf16, n - cut, cut, state_of(5));
      k.run(tail.op(cut, true));
      CHECK(k.read(tail.weights) == Vec(want.begin() + long(cut), want.end()));
    }
    for (int64_t at = 0; at + 7 <= n; at += 13) { // too short for a tile: one by one
      const Range piece = range_of(k, Dtype::bf16, 7, at, state_of(5));
      k.run(piece.op(at, true));
      CHECK(k.read(piece.weights) == Vec(want.begin() + long(at), want.begin() + long(at + 7)));
    }
    const Range later = range_of(k, Dtype::bf16, n, 0, state_of(5, 12));
    k.run(later.op(0, true));
    CHECK(k.read(later.master) == k.read(whole.master));
    CHECK(k.read(later.weights) != want);
  });
}

TEST_CASE("adamw: pieces of a range round as the whole, other tensor ranks otherwise but for what they share") {
  const int64_t n = 1024, pieces = 4, each = n / pieces, shared = 600;
  three_ways([&](KernelCheck& k) {
    const Range whole = range_of(k, Dtype::bf16, n, 0, state_of(5));
    k.run(whole.op(4096, true, 4096 + shared));
    const Vec want = k.read(whole.weights);
    for (int32_t r = 0; r < pieces; ++r) {
      StepState state = state_of(5);
      state.shard_rank = r;
      const Range piece = range_of(k, Dtype::bf16, each, r * each, state);
      k.run(piece.op(4096, true, 4096 + shared));
      CHECK(k.read(piece.weights) == Vec(want.begin() + r * each, want.begin() + (r + 1) * each));
    }
    StepState state = state_of(5);
    state.tensor_rank = 3;
    const Range other = range_of(k, Dtype::bf16, n, 0, state);
    k.run(other.op(4096, true, 4096 + shared));
    const Vec got = k.read(other.weights);
    CHECK(Vec(got.begin(), got.begin() + shared) != Vec(want.begin(), want.begin() + shared));
    CHECK(Vec(got.begin() + shared, got.end()) == Vec(want.begin() + shared, want.end()));
  });
}

TEST_CASE("adamw: where no token counted nothing changes, NaN is not hidden") {
  three_ways([&](KernelCheck& k) {
    const Range r = range_of(k, Dtype::f32, 300, 0, state_of(2), 0);
    const std::vector<uint8_t> before = k.bytes();
    k.run(r.op(0, false));
    CHECK(k.bytes() == before);
    const Range bad = range_of(k, Dtype::bf16, 300, 0, state_of(2), NAN);
    k.run(bad.op(0, true));
    for (double w : k.read(bad.weights)) CHECK(std::isnan(w));
  });
}

TEST_CASE("squared_norm: sums of squares by block, and a share of what several ranks hold") {
  for (const int64_t n : {0, 1, 2, 7, 1023, 4095, 4096, 4097, 12289, 40003})
    for (const int64_t shared : {int64_t(0), n / 3, n + 5, n + n / 2 + 3})
      three_ways([&](KernelCheck& k) {
        const int64_t blocks = (n + kNormBlock - 1) / kNormBlock;
        const Vec x = numbers(Dtype::f32, n, 1, 3);
        StepState state = state_of(1);
        state.shard_rank = shared > n ? 1 : 0; // the second of pieces of n elements
        const Tensor out = k.out(Dtype::f32, {blocks});
        const int64_t whole = shared + n / 4;
        k.run(squared_norm(out, k.in(Dtype::f32, {n}, x), k.bytes(state), {shared, 4, whole, 16}));
        Vec want(size_t(blocks), 0.0);
        for (int64_t i = 0; i < n; ++i)
          want[size_t(i / kNormBlock)] += x[size_t(i)] * x[size_t(i)] *
                                          (state.shard_rank * n + i < shared  ? 1
                                           : state.shard_rank * n + i < whole ? 0.25
                                                                              : 0.0625);
        check_close("blocks", k.read(out), want, Dtype::f32);
      });
}

TEST_CASE("norm_total: the sum of the first blocks of all pieces, row by row") {
  for (const int64_t count : {0, 1, 5, 11, 12})
    three_ways([&](KernelCheck& k) {
      const Vec x = numbers(Dtype::f32, 12, 1);
      const Tensor total = k.out(Dtype::f32, {1});
      k.run(norm_total(total, k.in_rows(Dtype::f32, 3, 4, 2, x), count));
      double sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += x[size_t(i)];
      check_close("total", k.read(total), {sum}, Dtype::f32);
    });
}

TEST_CASE("finish_gradients: mean, norm and clip") {
  const auto finish = [](const Vec& before, double capacity, double clip) {
    KernelCheck k(1);
    const Tensor s = k.in(Dtype::f32, {kStepScalars}, before);
    k.run(finish_gradients(s, float(capacity), float(clip)));
    return k.read(s);
  };
  // 80 of 100 tokens counted: the accumulated gradient is 0.8 of the mean's. Its norm 4 is that of a mean of 5.
  check_close("not clipped", finish({7, 80, 16, 0}, 100, 0), {7, 80, 25, 1.25}, Dtype::f32);
  check_close("below the clip", finish({7, 80, 16, 0}, 100, 6), {7, 80, 25, 1.25}, Dtype::f32);
  check_close("clipped", finish({7, 80, 16, 0}, 100, 2), {7, 80, 25, 0.5}, Dtype::f32);
  check_close("no token", finish({0, 0, 0, 9}, 100, 1), {0, 0, 0, 0}, Dtype::f32);
  check_close("no gradient", finish({7, 80, 0, 0}, 100, 1), {7, 80, 0, 1.25}, Dtype::f32);
  CHECK(std::isnan(finish({7, 80, NAN, 0}, 100, 1)[kGradientScale]));
}

TEST_CASE("adamw: operands that do not fit are refused") {
  KernelCheck k(1);
  const Range good = range_of(k, Dtype::bf16, 6, 0, state_of(1));
  const auto refused = [&](auto change) {
    Range r = good;
    change(r);
    return error_of([&] { r.op(0, true); });
  };
  const Tensor few = k.out(Dtype::f32, {5});
  CHECK(has(refused([&](Range& r) { r.master = {}; }), "with master"));
  CHECK(has(refused([&](Range& r) { r.moment1 = few; }), "moment1 is f32[5]"));
  CHECK(has(refused([&](Range& r) { r.gradient = r.weights; }), "gradient is bf16[6]"));
  CHECK(has(refused([&](Range& r) { r.state = few; }), "state is f32[5]"));
  CHECK(has(refused([&](Range& r) { r.scalars = few; }), "scalars are f32[5]"));
  CHECK(has(error_of([&] { squared_norm(few, few, good.state, {0, 1, 0, 1}); }), "blocks are f32[5]"));
  CHECK(has(error_of([&] { norm_total(few, few.view({1, 5}), 5); }), "total is f32[5]"));
  CHECK(has(error_of([&] { finish_gradients(good.scalars, 0, 1); }), "capacity 0"));
}

TEST_SUITE_END();

} // namespace
} // namespace triax
