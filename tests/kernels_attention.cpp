// Attention against the plain loops, forward and backward, on the host and on the emulated GPU: grouped heads,
// documents, windows, ragged lengths, and nothing written beyond the results and the scratch that was asked for.
#include "kernels/attention.h"
#include "kernels/emulated/emulation.h"
#include "tests/guarded.h"
#include "tests/helpers.h"
#include <array>
#include <cmath>
#include <doctest/doctest.h>
#include <limits>

namespace triax {
namespace {

using oracle::Ints;
using oracle::Vec;
using test::Matrix;

const Target kGpu = Target::parse("sm_90a");

struct Case {
  int B, T, H, G, D;
  Dtype dtype = Dtype::f32;
  int documents = 0; ///< 0: one a sequence; 1: several; 2: some positions see nothing
  int threads = 2;
  int64_t gap = 0;
  int window = 0;
  const char* units = nullptr; ///< of the emulated GPU; null: the host
  emulation::Order order = emulation::Order::forward;
};

Ints document_starts(const Case& t) {
  Ints starts;
  for (int b = 0; b < t.B; ++b)
    for (int i = 0, start = 0; i < t.T; ++i) {
      if (t.documents && (i * 7 + b * 3) % 23 == 22) start = i;
      starts.push_back(t.documents == 2 && i % 11 == 5 ? i + 1 : start);
    }
  return starts;
}

/// Columns [first, first + count) of rows of `width`.
Vec columns(const Vec& x, size_t width, size_t first, size_t count) {
  Vec part;
  for (size_t row = 0; row < x.size(); row += width)
    part.insert(part.end(), x.begin() + ptrdiff_t(row + first), x.begin() + ptrdiff_t(row + first + count));
  return part;
}

struct Result {
  Vec out, lse, dqkv;
  bool operator==(const Result&) const = default;
};

/// Runs the operation with exactly the scratch that it asks for. Is what surrounds it intact?
bool run_guarded(const Case& t, const Op& op, const char* kernel) {
  if (!t.units) return test::run_guarded(op, t.threads);
  const emulation::Emulation emulation(t.units, t.order, 7);
  const Description d = op.kind->describe(kGpu, op);
  CHECK(d.kernels.back() == kernel);
  test::Guarded scratch{size_t(d.scratch)};
  const Tensor part = Tensor::dense(uint64_t(scratch.data()), Space::device, Dtype::u8, {d.scratch});
  const emulation::Declared declared(op, part);
  find_launch(*op.kind, Target::Kind::cuda)(op, LaunchContext{nullptr, 1, part});
  return scratch.intact();
}

/// What the kernels give; the rest of what they touch must be as it was.
Result run(const Case& t, Matrix& qkv, Matrix& dout, const Ints& starts) {
  const AttentionShape shape{t.B, t.T, t.H, t.G, t.D, float(1.3 / std::sqrt(t.D)), t.window};
  const int64_t rows = int64_t(t.B) * t.T;
  Matrix out(t.dtype, rows, t.H * t.D, t.gap, 5), lse(Dtype::f32, rows, t.H, 0, 6);
  Matrix dqkv(t.dtype, rows, (t.H + 2 * t.G) * t.D, t.gap, 7);
  Ints start = starts;
  const Tensor document_start = Tensor::dense(uint64_t(start.data()), Space::device, Dtype::i32, {rows});
  const Tensor all_lse = lse.tensor().view({t.B, t.H, t.T});
  const bool flash = t.dtype == Dtype::bf16 && (t.D == 64 || t.D == 96 || t.D == 128) && t.gap % 8 == 0;
  CHECK(run_guarded(t, attention_forward({shape, out.tensor(), all_lse, qkv.tensor(), document_start}),
                    flash ? "attention_flash_forward" : "attention_forward"));
  const Op backward =
      attention_backward({shape, dqkv.tensor(), dout.tensor(), out.tensor(), all_lse, qkv.tensor(), document_start});
  CHECK(run_guarded(t, backward, flash ? "attention_flash_dq" : "attention_dq"));
  for (Matrix* m : {&out, &lse, &dqkv, &qkv, &dout}) CHECK(m->intact());
  CHECK(qkv.read() == qkv.value());
  CHECK(dout.read() == dout.value());
  CHECK(start == starts);
  return {out.read(), lse.read(), dqkv.read()};
}

Result check(const Case& t) {
  CAPTURE(t.B);
  CAPTURE(t.T);
  CAPTURE(t.H);
  CAPTURE(t.G);
  CAPTURE(t.D);
  CAPTURE(std::string(name_of(t.dtype)));
  CAPTURE(t.documents);
  CAPTURE(t.threads);
  CAPTURE(t.window);
  CAPTURE(std::string(t.units ? t.units : "host"));
  const size_t q = size_t(t.H) * size_t(t.D), kv = size_t(t.G) * size_t(t.D), width = q + 2 * kv;
  const int64_t rows = int64_t(t.B) * t.T;
  Matrix qkv(t.dtype, rows, int64_t(width), t.gap, 1, 2.0), dout(t.dtype, rows, int64_t(q), t.gap, 2);
  const Ints starts = document_starts(t);
  Result got = run(t, qkv, dout, starts);
  const oracle::AttentionInput in{.B = t.B,
                                  .T = t.T,
                                  .H = t.H,
                                  .G = t.G,
                                  .D = t.D,
                                  .scale = float(1.3 / std::sqrt(t.D)),
                                  .q = columns(qkv.value(), width, 0, q),
                                  .k = columns(qkv.value(), width, q, kv),
                                  .v = columns(qkv.value(), width, q + kv, kv),
                                  .document_start = starts,
                                  .window = t.window};
  const oracle::Attention want = oracle::attention(in);
  const oracle::AttentionGrad gradient = oracle::attention_backward(in, dout.value());
  // bf16: rounding costs a norm 2^-9 / sqrt(3) = 1.1e-3 of itself at most. The results are rounded once, with tensor
  // cores the weights too, and the backward pass, whose differences of weights are as well, reads a rounded `out`.
  const bool f32 = t.dtype == Dtype::f32;
  const double tolerance = f32 ? 2e-6 : 3e-3;
  const auto close = [&](const Vec& x, const Vec& like) { // one key's weight is 1 whatever its score: no gradient
    return oracle::relative_error(x, like) < (oracle::squared_norm(like) > 0 ? 2 * tolerance : 1e-4);
  };
  CHECK(oracle::relative_error(got.out, want.y) < tolerance);
  CHECK(close(columns(got.dqkv, width, 0, q), gradient.dq));
  CHECK(close(columns(got.dqkv, width, q, kv), gradient.dk));
  CHECK(close(columns(got.dqkv, width, q + kv, kv), gradient.dv));
  for (size_t i = 0; i < want.lse.size(); ++i) {
    const bool same = got.lse[i] == want.lse[i] || std::abs(got.lse[i] - want.lse[i]) < 1e-5;
    CHECK_MESSAGE(same, "lse ", i, " is ", got.lse[i], ", not ", want.lse[i]);
  }
  return got;
}

TEST_SUITE_BEGIN("kernels_attention");

TEST_CASE("attention: ragged lengths, head widths and groups") {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const int T : {1, 17, 64, 129})
      for (const auto& [H, G] : {std::pair{6, 2}, {3, 1}, {2, 2}})
        for (const int D : {8, 16, 64, 80}) check({2, T, H, G, D, dtype, T % 3, 1 + D / 8 % 2, D % 3 * 8});
  check({1, 40, 2, 1, 7});
  check({1, 70, 2, 1, 128});
}

TEST_CASE("attention: documents") {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const int documents : {1, 2})
      for (const int T : {5, 63, 200, 257})
        for (const int D : {16, 64}) check({2, T, 4, 2, D, dtype, documents, 2, 3}); // bf16: 64 in pairs, 16 not
}

TEST_CASE("attention: windows shorter than a tile, a tile, longer, longer than the sequence") {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const int window : {1, 2, 63, 64, 65, 130, 199, 200, 1000})
      for (const int documents : {0, 1, 2})
        check({1, 200, 2, 1, dtype == Dtype::bf16 && documents ? 96 : 16, dtype, documents, 2, 0, window});
  const Result all = check({1, 150, 2, 1, 16});
  for (const int window : {150, 151, INT32_MAX}) CHECK(all == check({1, 150, 2, 1, 16, Dtype::f32, 0, 2, 0, window}));
  CHECK(all != check({1, 150, 2, 1, 16, Dtype::f32, 0, 2, 0, 149}));
}

TEST_CASE("attention: the bits do not depend on the number of threads") {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    const Result one = check({2, 150, 6, 2, 32, dtype, 1, 1});
    CHECK(one == check({2, 150, 6, 2, 32, dtype, 1, 2}));
    CHECK(one == check({2, 150, 6, 2, 32, dtype, 1, 3}));
  }
}

/// On the emulated GPU, by the sanitizers, in two orders that must give the same bits, and by the race detector.
void check_emulated(Case t) {
  t.units = "emulated";
  const Result one = check(t);
  t.order = emulation::Order::shuffled;
  t.units = "races";
  CHECK(one == check(t));
}

TEST_CASE("attention: flash attention, emulated: ragged lengths, head widths and groups") {
  int n = 0;
  for (const int T : {1, 63, 64, 65, 200})
    for (const int D : {64, 96, 128}) {
      const auto [B, H, G] =
          std::array{std::array{2, 2, 2}, std::array{1, 2, 1}, std::array{1, 4, 1}}[size_t(n++ + T) % 3];
      check_emulated({B, T, H, G, D, Dtype::bf16, 0, 1, D % 5 * 8});
    }
  check_emulated({3, 70, 4, 2, 128, Dtype::bf16, 1}); // more heads than are worked on together
}

TEST_CASE("attention: flash attention, emulated: documents and windows") {
  check_emulated({1, 200, 2, 1, 64, Dtype::bf16, 1});
  check_emulated({1, 200, 1, 1, 128, Dtype::bf16, 2});
  for (const int window : {1, 64, 199}) check_emulated({1, 200, 1, 1, 64, Dtype::bf16, 0, 1, 0, window});
  for (const int window : {30, 100, 1000})
    check_emulated({1, 200, 1, 1, 128, Dtype::bf16, window == 100, 1, 0, window});
  check_emulated({1, 330, 2, 1, 96, Dtype::bf16, 0, 1, 0, 70});
}

TEST_CASE("attention: the plain kernel, emulated") {
  check_emulated({1, 1, 1, 1, 8, Dtype::f32});
  check_emulated({2, 67, 4, 2, 20, Dtype::bf16, 1, 1, 3});
  check_emulated({1, 70, 2, 1, 64, Dtype::bf16, 2, 1, 3, 40});
  check_emulated({1, 40, 2, 1, 128, Dtype::f32, 0, 1, 0, 20});
  check_emulated({1, 35, 1, 1, 200, Dtype::f32});
}

TEST_CASE("attention: a row that sees nothing gives nothing") {
  const Case t{1, 70, 2, 1, 16};
  Matrix qkv(t.dtype, t.T, 64, 0, 1), dout(t.dtype, t.T, 32, 0, 2);
  Ints starts(size_t(t.T), 0);
  starts[0] = 1;
  starts[69] = 70;
  const Result got = run(t, qkv, dout, starts);
  for (const size_t row : {0, 69})
    for (size_t c = 0; c < 32; ++c) {
      CHECK(got.out[row * 32 + c] == 0.0);
      CHECK(got.dqkv[row * 64 + c] == 0.0);
    }
  for (const size_t i : {0, 69, 70, 139}) CHECK(got.lse[i] == -std::numeric_limits<double>::infinity());
  for (size_t c = 32; c < 64; ++c) CHECK(got.dqkv[69 * 64 + c] == 0.0); // a key that only the last row could see
}

TEST_CASE("attention: shapes that do not fit are refused") {
  const AttentionShape shape{2, 8, 4, 2, 16, 0.25f};
  const auto dense = [](Dtype dtype, std::initializer_list<int64_t> dims) {
    return Tensor::dense(4096, Space::device, dtype, dims);
  };
  const AttentionForward good{shape, dense(Dtype::bf16, {16, 64}), dense(Dtype::f32, {2, 4, 8}),
                              dense(Dtype::bf16, {16, 128}), dense(Dtype::i32, {16})};
  const auto refused = [](const AttentionForward& f) { return test::error_of([&] { attention_forward(f); }); };
  CHECK(refused(good).empty());
  AttentionForward bad = good;
  bad.shape.kv_heads = 3;
  CHECK(test::has(refused(bad), "do not divide"));
  bad = good;
  bad.shape.window = -1;
  CHECK(test::has(refused(bad), "a window of -1"));
  bad = good;
  bad.qkv = dense(Dtype::bf16, {16, 64});
  CHECK(test::has(refused(bad), "qkv is"));
  bad = good;
  bad.out = dense(Dtype::f32, {16, 64});
  CHECK(test::has(refused(bad), "out is"));
  bad = good;
  bad.lse = dense(Dtype::f32, {2, 8, 4});
  CHECK(test::has(refused(bad), "lse is"));
  bad = good;
  bad.document_start = dense(Dtype::i32, {8});
  CHECK(test::has(refused(bad), "document_start is"));
}

TEST_CASE("attention: which kernel a GPU runs") {
  const auto kernel = [](Dtype dtype, int64_t D, uint64_t address = 4096, int64_t gap = 0, float scale = 0.1f) {
    const auto rows = [&](int64_t columns) {
      return Tensor::dense(address, Space::device, dtype, {16, columns + gap}).slice(1, 0, columns);
    };
    const Tensor lse = Tensor::dense(4096, Space::device, Dtype::f32, {2, 4, 8});
    const Tensor start = Tensor::dense(4096, Space::device, Dtype::i32, {16});
    const Op forward = attention_forward({{2, 8, 4, 2, D, scale}, rows(4 * D), lse, rows(8 * D), start});
    const Op backward =
        attention_backward({{2, 8, 4, 2, D, scale}, rows(8 * D), rows(4 * D), rows(4 * D), lse, rows(8 * D), start});
    const std::string name = forward.kind->describe(kGpu, forward).kernels.front();
    const std::string dq = backward.kind->describe(kGpu, backward).kernels.back();
    CHECK((name == "attention_flash_forward") == (dq == "attention_flash_dq"));
    return name;
  };
  const std::string flash = "attention_flash_forward", plain = "attention_forward";
  for (const int64_t D : {64, 96, 128}) CHECK(kernel(Dtype::bf16, D) == flash);
  for (const int64_t D : {32, 80, 256}) CHECK(kernel(Dtype::bf16, D) == plain);
  CHECK(kernel(Dtype::f32, 64) == plain);
  CHECK(kernel(Dtype::bf16, 64, 4096 + 8) == plain);
  CHECK(kernel(Dtype::bf16, 64, 4096, 4) == plain);
  CHECK(kernel(Dtype::bf16, 64, 4096, 8) == flash);
  CHECK(kernel(Dtype::bf16, 64, 4096, 0, 0.0f) == plain); // flash attention scales after the maximum
}

TEST_CASE("attention: described for a GPU") {
  const AttentionShape shape{2, 8, 4, 2, 16, 0.25f};
  const auto dense = [](Dtype dtype, std::initializer_list<int64_t> dims) {
    return Tensor::dense(4096, Space::device, dtype, dims);
  };
  const Tensor x = dense(Dtype::bf16, {16, 64}), qkv = dense(Dtype::bf16, {16, 128});
  const Tensor lse = dense(Dtype::f32, {2, 4, 8}), start = dense(Dtype::i32, {16});
  const Op forward = attention_forward({shape, x, lse, qkv, start});
  const Op backward = attention_backward({shape, qkv, x, x, lse, qkv, start});
  const Target& gpu = kGpu;
  CHECK(forward.kind->describe(gpu, forward).flops == 2.0 * 2.0 * (2 * 4) * 36.0 * 16.0);
  CHECK(backward.kind->describe(gpu, backward).flops == 5.0 * 2.0 * (2 * 4) * 36.0 * 16.0);
  CHECK(forward.kind->describe(gpu, forward).scratch == 0);
  AttentionShape windowed = shape;
  const auto pairs = [&](int64_t window) { // of one head
    windowed.window = window;
    const Op op = attention_forward({windowed, x, lse, qkv, start});
    return op.kind->describe(gpu, op).flops / (2.0 * 2.0 * (2 * 4) * 16.0);
  };
  CHECK(pairs(1) == 8);
  CHECK(pairs(3) == 1 + 2 + 3 * 6);
  CHECK(pairs(8) == 36);
  CHECK(pairs(100) == 36);
  CHECK(backward.kind->describe(gpu, backward).scratch == (2 * 4 * 4 * 64 + 2 * 2) * 4);
}

TEST_SUITE_END();

} // namespace
} // namespace triax
