// The loss and its sum.
#include "kernels/cross_entropy.h"
#include "kernels/step_state.h"
#include "tests/helpers.h"
#include "tests/kernel_check.h"

namespace triax {
namespace {

using namespace test;

constexpr Dtype kFloats[] = {Dtype::f32, Dtype::bf16};

Ints some_labels(int64_t N, int64_t V) {
  Ints labels;
  for (int64_t n = 0; n < N; ++n) labels.push_back(n % 5 == 3 ? -1 : int32_t(n == 0 ? V - 1 : n * 7919 % V));
  return labels;
}

TEST_SUITE_BEGIN("kernels_cross_entropy");

TEST_CASE("cross_entropy: losses and gradients, on columns of wider rows") {
  for (const int64_t N : {0, 1, 2, 7, 33})
    for (const int64_t V : {1, 2, 17, 255, 256, 257, 1031, 5003})
      for (const Dtype dtype : kFloats)
        for (const double scale : {1.0, 30.0})
          three_ways([&](KernelCheck& k) {
            if (k.emulated() && N * V > 12000) return;
            const Vec logits = numbers(dtype, N * V, 1, scale);
            const Ints labels = some_labels(N, V);
            const Tensor z = k.in_rows(dtype, N, V, V == 257 ? 9 : 0, logits), t = k.in({N}, labels),
                         losses = k.out(Dtype::f32, {N}), again = k.out(Dtype::f32, {N});
            k.run(cross_entropy(losses, z, t, 0.125f, false));
            CHECK(k.read(z) == logits);
            k.run(cross_entropy(again, z, t, 0.125f, true));
            CHECK(k.read(losses) == k.read(again));
            if (N == 0) return;
            const oracle::CrossEntropy want = oracle::cross_entropy(logits, labels, 0.125);
            check_close("losses", k.read(losses), want.losses, Dtype::f32);
            check_close("dlogits", k.read(z), want.dlogits, dtype);
          });
}

TEST_CASE("cross_entropy_parts: classes parted over ranks give the losses and gradients of the whole") {
  for (const int64_t V : {1, 5, 257, 1031})
    for (const int64_t ranks : {2, 3, 8}) // with V = 1 and 5 some ranks hold nothing but padding
      for (const Dtype dtype : kFloats)
        three_ways([&](KernelCheck& k) {
          const int64_t N = 7, part = (V + ranks - 1) / ranks;
          const Vec logits = numbers(dtype, N * V, 1, 5);
          const Ints labels = some_labels(N, V);
          const oracle::CrossEntropy want = oracle::cross_entropy(logits, labels, 0.125);
          const Tensor t = k.in({N}, labels);
          std::vector<Tensor> z, states;
          Vec all;
          for (int32_t r = 0; r < ranks; ++r) {
            Vec mine(size_t(N * part), 1e30); // what stands in the padding does not matter
            for (int64_t n = 0; n < N; ++n)
              for (int64_t c = 0; c < part && r * part + c < V; ++c)
                mine[size_t(n * part + c)] = logits[size_t(n * V + r * part + c)];
            StepState state;
            state.tensor_rank = r;
            states.push_back(k.bytes(state));
            z.push_back(k.in(dtype, {N, part}, rounded(dtype, mine)));
            const Tensor own = k.out(Dtype::f32, {N, 3});
            k.run(softmax_statistics(own, z.back(), t, states.back(), V));
            const Vec values = k.read(own);
            all.insert(all.end(), values.begin(), values.end());
          }
          const Tensor statistics = k.in(Dtype::f32, {ranks, N, 3}, all);
          for (int64_t r = 0; r < ranks; ++r) {
            const Tensor losses = k.out(Dtype::f32, {N}), again = k.out(Dtype::f32, {N});
            const auto run = [&](const Tensor& to, bool backward) {
              k.run(cross_entropy_parts(to, z[size_t(r)], t, statistics, states[size_t(r)], V, 0.125f, backward));
            };
            run(losses, false);
            run(again, true);
            CHECK(k.read(losses) == k.read(again));
            check_close("losses", k.read(losses), want.losses, Dtype::f32);
            const Vec got = k.read(z[size_t(r)]);
            Vec mine(size_t(N * part), 0.0);
            for (int64_t n = 0; n < N; ++n)
              for (int64_t c = 0; c < part && r * part + c < V; ++c)
                mine[size_t(n * part + c)] = want.dlogits[size_t(n * V + r * part + c)];
            for (int64_t n = 0; n < N; ++n) // the padding is 0
              for (int64_t c = std::max<int64_t>(V - r * part, 0); c < part; ++c) CHECK(got[size_t(n * part + c)] == 0);
            if (oracle::squared_norm(mine) > 0) check_close("dlogits", got, mine, dtype);
          }
        });
}

TEST_CASE("cross_entropy: huge logits, masked logits, no counted row") {
  for (const Dtype dtype : kFloats)
    three_ways([&](KernelCheck& k) {
      const int64_t V = 300;
      Vec logits(size_t(4 * V), 0);
      for (size_t i = 0; i < size_t(V); ++i) {
        logits[i] = rounded(dtype, i % 2 ? 1e4 : -1e4);
        logits[size_t(V) + i] = rounded(dtype, i == 7 ? 3e38 : -3e38);
        logits[2 * size_t(V) + i] = i < 260 ? -HUGE_VAL : double(i % 3); // the whole first tile is masked
        logits[3 * size_t(V) + i] = rounded(dtype, 1e12);
      }
      const Ints labels{1, 7, 299, 0};
      const Tensor z = k.in(dtype, {4, V}, logits), t = k.in({4}, labels), losses = k.out(Dtype::f32, {4});
      k.run(cross_entropy(losses, z, t, 1.0f, true));
      const oracle::CrossEntropy want = oracle::cross_entropy(logits, labels, 1);
      check_close("losses", k.read(losses), want.losses, Dtype::f32);
      check_close("dlogits", k.read(z), want.dlogits, dtype);
      const Vec got = k.read(z);
      for (size_t i = 0; i < 260; ++i) CHECK(got[2 * size_t(V) + i] == 0);

      const Tensor none = k.in({4}, Ints(4, -1)), wild = k.in(dtype, {4, V}, Vec(size_t(4 * V), NAN));
      k.run(cross_entropy(losses, wild, none, 1.0f, true));
      CHECK(k.read(losses) == Vec(4, 0));
      CHECK(k.read(wild) == Vec(size_t(4 * V), 0));
    });
}

TEST_CASE("cross_entropy: NaN stays NaN, a label that is no class is seen") {
  three_ways([&](KernelCheck& k) {
    const int64_t V = 700;
    Vec logits = numbers(Dtype::f32, 3 * V, 1);
    logits[650] = NAN;
    logits[size_t(2 * V) + 3] = HUGE_VAL;
    const Tensor z = k.in(Dtype::f32, {3, V}, logits), t = k.in({3}, Ints{5, int32_t(V), 4}),
                 losses = k.out(Dtype::f32, {3});
    k.run(cross_entropy(losses, z, t, 1.0f, true));
    const Vec got = k.read(losses), dz = k.read(z);
    for (double loss : got) CHECK(std::isnan(loss));
    for (int64_t i = 0; i < V; ++i) CHECK(std::isnan(dz[size_t(i)]));
  });
}

TEST_CASE("cross_entropy: a vocabulary of GPT-2's size") {
  const int64_t V = 50257;
  three_ways([&](KernelCheck& k) {
    const Vec logits = numbers(Dtype::bf16, 3 * V, 1, 12);
    const Ints labels{50256, -1, 0};
    const Tensor z = k.in(Dtype::bf16, {3, V}, logits), t = k.in({3}, labels), losses = k.out(Dtype::f32, {3});
    k.run(cross_entropy(losses, z, t, 0.5f, true));
    const oracle::CrossEntropy want = oracle::cross_entropy(logits, labels, 0.5);
    check_close("losses", k.read(losses), want.losses, Dtype::f32);
    check_close("dlogits", k.read(z), want.dlogits, Dtype::bf16);
  });
}

TEST_CASE("sum_losses: adds the sum and the count") {
  for (const int64_t n : {0, 1, 7, 1021, 65537})
    three_ways([&](KernelCheck& k) {
      const Vec losses = numbers(Dtype::f32, n, 1, 4);
      const Ints labels = some_labels(n, 100);
      Vec want{2, 3, 4, 5};
      for (double loss : losses) want[kLossSum] += loss;
      for (int32_t label : labels) want[kTokenCount] += label != -1;
      const Tensor s = k.in(Dtype::f32, {kStepScalars}, {2, 3, 4, 5});
      k.run(sum_losses(s, k.in(Dtype::f32, {n}, losses), k.in({n}, labels)));
      check_close("scalars", k.read(s), want, Dtype::f32);
      CHECK(k.read(s)[kTokenCount] == want[kTokenCount]);
    });
}

TEST_CASE("cross_entropy: operands that do not fit are refused") {
  KernelCheck k(1);
  const Tensor z = k.out(Dtype::f32, {4, 9}), t = k.out(Dtype::i32, {4}), few = k.out(Dtype::i32, {3}),
               losses = k.out(Dtype::f32, {4}), s = k.out(Dtype::f32, {kStepScalars});
  CHECK(has(error_of([&] { cross_entropy(losses, z, few, 1, true); }), "labels are i32[3]"));
  CHECK(has(error_of([&] { cross_entropy(t, z, t, 1, true); }), "losses are i32[4]"));
  CHECK(has(error_of([&] { cross_entropy(losses, t, t, 1, true); }), "logits are i32[4]"));
  CHECK(has(error_of([&] { sum_losses(s, losses, few); }), "labels are i32[3]"));
  CHECK(has(error_of([&] { sum_losses(z, losses, t); }), "scalars are f32[4, 9]"));
}

TEST_SUITE_END();

} // namespace
} // namespace triax
