// Attention whose sequence is shared by several ranks: the parts of a ring, joined, against attention of the whole.
#include "kernels/attention.h"
#include "kernels/step_state.h"
#include "tests/helpers.h"
#include "tests/kernel_check.h"

namespace triax {
namespace {

using namespace test;

struct Case {
  int64_t B, T, H, G, D; ///< T: rows of a sequence on one rank
  int ranks;
  Dtype dtype = Dtype::f32;
  bool documents = false;
  int64_t window = 0, gap = 0;
  int64_t whole() const { return T * ranks; }
};

/// Positions of the rows that a rank has of a sequence.
std::vector<int64_t> positions_of(const Case& c, int rank) {
  std::vector<int64_t> at;
  const int64_t chunk = c.T / 2;
  for (const int64_t first : {rank * chunk, (2 * c.ranks - 1 - rank) * chunk})
    for (int64_t i = 0; i < chunk; ++i) at.push_back(first + i);
  return at;
}

/// The rows of a rank, of all sequences: x[B, whole T, columns].
template <class Rows> Rows rows_of(const Case& c, int rank, const Rows& x, int64_t columns) {
  Rows rows;
  for (int64_t b = 0; b < c.B; ++b)
    for (const int64_t t : positions_of(c, rank)) {
      const auto from = x.begin() + ptrdiff_t((b * c.whole() + t) * columns);
      rows.insert(rows.end(), from, from + ptrdiff_t(columns));
    }
  return rows;
}

/// a's columns, then b's.
Vec side_by_side(const Vec& a, const Vec& b, int64_t columns) {
  Vec both;
  for (size_t i = 0; i < a.size(); i += size_t(columns))
    for (const Vec* v : {&a, &b})
      both.insert(both.end(), v->begin() + ptrdiff_t(i), v->begin() + ptrdiff_t(i) + ptrdiff_t(columns));
  return both;
}

void add_to(Vec& sum, const Vec& part) {
  sum.resize(part.size());
  for (size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
}

struct Whole {
  oracle::AttentionInput in;
  Vec dout;
  oracle::Attention out;
  oracle::AttentionGrad gradient;
  explicit Whole(const Case& c) {
    const int64_t N = c.B * c.whole();
    Ints starts;
    for (int64_t n = 0, start = 0; n < N; ++n) {
      const int64_t t = n % c.whole();
      if (t == 0) start = 0;
      if (c.documents && n % 29 == 11) start = t;
      starts.push_back(int32_t(c.documents && n % 37 == 5 ? t + 1 : start)); // some see nothing
    }
    in = {.B = int(c.B),
          .T = int(c.whole()),
          .H = int(c.H),
          .G = int(c.G),
          .D = int(c.D),
          .scale = 0.3,
          .q = numbers(c.dtype, N * c.H * c.D, 1, 2.0),
          .k = numbers(c.dtype, N * c.G * c.D, 2, 2.0),
          .v = numbers(c.dtype, N * c.G * c.D, 3),
          .document_start = starts,
          .window = int(c.window)};
    dout = numbers(c.dtype, N * c.H * c.D, 4);
    out = oracle::attention(in);
    gradient = oracle::attention_backward(in, dout);
  }
};

/// lse[B, H, T] of a rank's rows.
Vec lse_of(const Case& c, int rank, const Vec& lse) {
  Vec rows;
  for (int64_t h = 0; h < c.B * c.H; ++h)
    for (const int64_t t : positions_of(c, rank)) rows.push_back(lse[size_t(h * c.whole() + t)]);
  return rows;
}

void check(KernelCheck& k, const Case& c) {
  CAPTURE(c.ranks);
  CAPTURE(c.T);
  CAPTURE(c.D);
  const Whole whole(c);
  const int64_t N = c.B * c.T, queries = c.H * c.D, keys = c.G * c.D;
  const AttentionShape shape{c.B, c.T, c.H, c.G, c.D, 0.3f, c.window, c.documents};
  const double tolerance = c.dtype == Dtype::f32 ? 3e-6 : 6e-3; // as of the whole, and a rounding more for each part
  // Every rank's keys and values, and what they get from all ranks.
  std::vector<Tensor> kv;
  std::vector<Vec> dkv(size_t(c.ranks));
  for (int r = 0; r < c.ranks; ++r)
    kv.push_back(k.in_rows(c.dtype, N, 2 * keys, c.gap,
                           side_by_side(rows_of(c, r, whole.in.k, keys), rows_of(c, r, whole.in.v, keys), keys)));
  for (int r = 0; r < c.ranks; ++r) {
    CAPTURE(r);
    const auto own = [&](const Vec& x) { return k.in_rows(c.dtype, N, queries, c.gap, rows_of(c, r, x, queries)); };
    const Tensor q = own(whole.in.q), dout = own(whole.dout),
                 start = k.in({N}, rows_of(c, r, whole.in.document_start, 1));
    StepState state;
    state.context_rank = r;
    const Tensor place = k.bytes(state);
    const auto ring = [&](int step) { return c.ranks == 1 ? AttentionRing{} : AttentionRing{c.ranks, step, place}; };
    const auto source = [&](int step) { return size_t((r - step + c.ranks) % c.ranks); };
    const auto part = [&](Dtype dtype) {
      return AttentionPart{k.out(dtype, {N, queries}), k.out(Dtype::f32, {c.B, c.H, c.T})};
    };
    AttentionPart all = part(c.dtype);
    k.run(attention_forward({shape, ring(0), all.out, all.lse, q, kv[source(0)], start}));
    for (int step = 1; step < c.ranks; ++step) {
      const AttentionPart more = part(c.dtype);
      k.run(attention_forward({shape, ring(step), more.out, more.lse, q, kv[source(step)], start}));
      // In place where it can be; the last one in the dtype of the rows.
      AttentionPart joined = part(step + 1 < c.ranks ? Dtype::f32 : c.dtype);
      if (joined.out.dtype == all.out.dtype) joined.out = all.out;
      k.run(attention_join(joined, all, more));
      all = joined;
    }
    CHECK(oracle::relative_error(k.read(all.out), rows_of(c, r, whole.out.y, queries)) < tolerance);
    const Vec lse = k.read(all.lse), want = lse_of(c, r, whole.out.lse);
    for (size_t i = 0; i < want.size(); ++i)
      if (!(lse[i] == want[i] || std::abs(lse[i] - want[i]) < 2e-5))
        FAIL_CHECK("lse ", i, " is ", lse[i], ", not ", want[i]);

    Vec dq;
    for (int step = 0; step < c.ranks; ++step) {
      const Tensor to = k.out(c.dtype, {N, queries}), to_keys = k.out(c.dtype, {N, 2 * keys});
      k.run(attention_backward({shape, ring(step), to, to_keys, dout, all.out, all.lse, q, kv[source(step)], start}));
      add_to(dq, k.read(to));
      add_to(dkv[source(step)], k.read(to_keys));
    }
    CHECK(oracle::relative_error(dq, rows_of(c, r, whole.gradient.dq, queries)) < 2 * tolerance);
  }
  for (int r = 0; r < c.ranks; ++r) {
    const Vec want = side_by_side(rows_of(c, r, whole.gradient.dk, keys), rows_of(c, r, whole.gradient.dv, keys), keys);
    CHECK(oracle::relative_error(dkv[size_t(r)], want) < 2 * tolerance);
  }
}

TEST_SUITE_BEGIN("kernels_attention_ring");

TEST_CASE("ring attention: ranks, ragged chunks, groups, on the host") {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const auto& [ranks, T] : {std::pair{1, 18}, {2, 2}, {2, 150}, {3, 18}, {4, 70}, {8, 18}})
      on_both_teams([&](KernelCheck& k) { check(k, {2, T, 4, 2, T == 18 ? 64 : 20, ranks, dtype, false, 0, 4}); });
}

TEST_CASE("ring attention: documents and windows, on the host") {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const auto& [ranks, window] : {std::pair{2, 0}, {2, 1}, {4, 40}, {2, 100}, {4, 1000}})
      on_both_teams([&](KernelCheck& k) { check(k, {2, 70, 2, 1, 32, ranks, dtype, window != 40, window}); });
}

TEST_CASE("ring attention: flash attention, emulated") {
  for (const Case& c :
       {Case{1, 66, 2, 1, 64, 2, Dtype::bf16}, Case{1, 160, 2, 2, 64, 2, Dtype::bf16, true},
        Case{1, 64, 2, 1, 96, 4, Dtype::bf16, false, 50}, Case{1, 132, 1, 1, 128, 3, Dtype::bf16, true}})
    ways([&](KernelCheck& k) { check(k, c); }, false, true);
}

TEST_CASE("ring attention: the plain kernels, emulated") {
  for (const Case& c :
       {Case{1, 34, 2, 1, 20, 3, Dtype::f32, true, 0, 3}, Case{2, 70, 2, 1, 32, 2, Dtype::bf16, false, 30}})
    ways([&](KernelCheck& k) { check(k, c); }, false, true);
}

TEST_CASE("attention_join: rows that saw nothing, in every way") {
  const double none = -std::numeric_limits<double>::infinity();
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    three_ways([&](KernelCheck& k) {
      for (const int64_t D : {1, 7, 64}) {
        const int64_t B = 2, T = 3, H = 2, N = B * T;
        const Vec x = numbers(dtype, N * H * D, 1), y = numbers(dtype, N * H * D, 2);
        Vec a = numbers(Dtype::f32, N * H, 3, 5), b = numbers(Dtype::f32, N * H, 4, 5);
        a[0] = a[3] = b[3] = b[4] = none;
        const AttentionPart to{k.out(dtype, {N, H * D}), k.out(Dtype::f32, {B, H, T})};
        k.run(attention_join(to, {k.in(dtype, {N, H * D}, x), k.in(Dtype::f32, {B, H, T}, a)},
                             {k.in(dtype, {N, H * D}, y), k.in(Dtype::f32, {B, H, T}, b)}));
        Vec want(x.size()), want_lse(a.size());
        for (int64_t n = 0; n < N; ++n)
          for (int64_t h = 0; h < H; ++h) {
            const size_t i = size_t((n / T * H + h) * T + n % T);
            const double total = std::exp(a[i]) + std::exp(b[i]);
            want_lse[i] = std::log(total);
            for (int64_t d = 0; d < D; ++d) {
              const size_t at = size_t((n * H + h) * D + d);
              want[at] = total > 0 ? (std::exp(a[i]) * x[at] + std::exp(b[i]) * y[at]) / total : 0.0;
            }
          }
        check_close("joined", k.read(to.out), want, dtype, 2);
        check_close("lse", k.read(to.lse), want_lse, Dtype::f32, 4);
      }
    });
}

TEST_CASE("ring attention: shapes that do not fit are refused") {
  const auto dense = [](Dtype dtype, std::initializer_list<int64_t> dims, uint64_t at = 4096) {
    return Tensor::dense(at, Space::device, dtype, dims);
  };
  const Tensor out = dense(Dtype::f32, {14, 64}), lse = dense(Dtype::f32, {2, 4, 7}), kv = dense(Dtype::f32, {14, 64}),
               start = dense(Dtype::i32, {14}), state = dense(Dtype::u8, {sizeof(StepState)});
  const auto refused = [&](const AttentionRing& ring) {
    return error_of([&] { attention_forward({{2, 7, 4, 2, 16, 0.25f}, ring, out, lse, out, kv, start}); });
  };
  CHECK(refused({}).empty());
  CHECK(has(refused({2, 0, state}), "7 rows of a sequence"));
  CHECK(has(refused({1, 0, state}), "state is"));
  const auto even = [&](const AttentionRing& ring) {
    return error_of([&] {
      attention_forward({{1, 14, 4, 2, 16, 0.25f}, ring, out, dense(Dtype::f32, {1, 4, 14}), out, kv, start});
    });
  };
  CHECK(even({2, 1, state}).empty());
  CHECK(has(even({2, 2, state}), "step 2 of 2"));
  CHECK(has(even({2, 1, {}}), "state is"));
  const AttentionPart a{out, lse}, b{out, dense(Dtype::f32, {2, 4, 7}, 8192)};
  CHECK(has(error_of([&] { attention_join(a, a, b); }), "lse in place"));
  CHECK(error_of([&] { attention_join(b, a, {out, dense(Dtype::f32, {2, 4, 7}, 12288)}); }).empty());
}

TEST_SUITE_END();

} // namespace
} // namespace triax
