// Attention on the CPU against the plain loops, forward and backward: grouped heads, documents, ragged lengths, and
// nothing written beyond the results and the scratch that was asked for.
#include "kernels/attention.h"
#include "tests/guarded.h"
#include "tests/helpers.h"
#include <cmath>
#include <doctest/doctest.h>
#include <limits>

namespace triax {
namespace {

using oracle::Ints;
using oracle::Vec;
using test::Matrix;

struct Case {
  int B, T, H, G, D;
  Dtype dtype = Dtype::f32;
  int documents = 0; ///< 0: one a sequence; 1: several; 2: some positions see nothing
  int threads = 2;
  int64_t gap = 0;
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

/// What the kernels give; the rest of what they touch must be as it was.
Result run(const Case& t, Matrix& qkv, Matrix& dout, const Ints& starts) {
  const AttentionShape shape{t.B, t.T, t.H, t.G, t.D, float(1.3 / std::sqrt(t.D))};
  const int64_t rows = int64_t(t.B) * t.T;
  Matrix out(t.dtype, rows, t.H * t.D, t.gap, 5), lse(Dtype::f32, rows, t.H, 0, 6);
  Matrix dqkv(t.dtype, rows, (t.H + 2 * t.G) * t.D, t.gap, 7);
  Ints start = starts;
  const Tensor document_start = Tensor::dense(uint64_t(start.data()), Space::device, Dtype::i32, {rows});
  const Tensor all_lse = lse.tensor().view({t.B, t.H, t.T});
  CHECK(test::run_guarded(attention_forward({shape, out.tensor(), all_lse, qkv.tensor(), document_start}), t.threads));
  const Op backward =
      attention_backward({shape, dqkv.tensor(), dout.tensor(), out.tensor(), all_lse, qkv.tensor(), document_start});
  CHECK(test::run_guarded(backward, t.threads));
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
                                  .document_start = starts};
  const oracle::Attention want = oracle::attention(in);
  const oracle::AttentionGrad gradient = oracle::attention_backward(in, dout.value());
  // bf16: the results are rounded once, and the backward pass reads a rounded `out`.
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
      for (const int T : {5, 63, 200, 257}) check({2, T, 4, 2, 16, dtype, documents, 2, 3});
}

TEST_CASE("attention: the bits do not depend on the number of threads") {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    const Result one = check({2, 150, 6, 2, 32, dtype, 1, 1});
    CHECK(one == check({2, 150, 6, 2, 32, dtype, 1, 2}));
    CHECK(one == check({2, 150, 6, 2, 32, dtype, 1, 3}));
  }
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

TEST_CASE("attention: described for a GPU") {
  const AttentionShape shape{2, 8, 4, 2, 16, 0.25f};
  const auto dense = [](Dtype dtype, std::initializer_list<int64_t> dims) {
    return Tensor::dense(4096, Space::device, dtype, dims);
  };
  const Tensor x = dense(Dtype::bf16, {16, 64}), qkv = dense(Dtype::bf16, {16, 128});
  const Tensor lse = dense(Dtype::f32, {2, 4, 8}), start = dense(Dtype::i32, {16});
  const Op forward = attention_forward({shape, x, lse, qkv, start});
  const Op backward = attention_backward({shape, qkv, x, x, lse, qkv, start});
  const Target gpu = Target::parse("sm_90a");
  CHECK(forward.kind->describe(gpu, forward).flops == 2.0 * 2.0 * (2 * 4) * 36.0 * 16.0);
  CHECK(backward.kind->describe(gpu, backward).flops == 5.0 * 2.0 * (2 * 4) * 36.0 * 16.0);
  CHECK(forward.kind->describe(gpu, forward).scratch == 0);
  CHECK(backward.kind->describe(gpu, backward).scratch == 2 * 4 * 8 * 4);
}

TEST_SUITE_END();

} // namespace
} // namespace triax
