// Embedding, forward and backward.
#include "kernels/embedding.h"
#include "kernels/step_state.h"
#include "tests/helpers.h"
#include "tests/kernel_check.h"
#include <algorithm>
#include <numeric>

namespace triax {
namespace {

using namespace test;

/// Of N tokens most are rare, and every third is token 1.
Ints some_tokens(int64_t N, int64_t V) {
  Ints tokens;
  for (int64_t n = 0; n < N; ++n) tokens.push_back(int32_t(n % 3 == 2 ? 1 % V : (n * n + 5 * n) % V));
  return tokens;
}

/// Rows sorted by token, stably.
Ints order_of(const Ints& tokens) {
  Ints order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return tokens[size_t(a)] < tokens[size_t(b)]; });
  return order;
}

TEST_SUITE_BEGIN("kernels_embedding");

TEST_CASE("embedding: forward and backward, with and without positions") {
  for (const int64_t N : {0, 1, 6, 64, 67, 201})
    for (const int64_t C : {1, 3, 64, 65, 127, 2051})
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
        three_ways([&](KernelCheck& k) {
          if (k.emulated() && N * C > 15000) return;
          const int64_t V = N == 64 ? 1 : 37, T = N == 6 ? 3 : 80; // some positions see no row
          const Ints tokens = some_tokens(N, V);
          Ints position;
          for (int64_t n = 0; n < N; ++n) position.push_back(int32_t(n % T));
          const Vec table = numbers(dtype, V * C, 1), positions = numbers(dtype, T * C, 2),
                    dy = numbers(dtype, N * C, 3);
          const Tensor t = k.in({N}, tokens), order = k.in({N}, order_of(tokens)), tab = k.in(dtype, {V, C}, table),
                       pos = k.in(dtype, {T, C}, positions), y = k.out(dtype, {N, C}), dyt = k.in(dtype, {N, C}, dy);
          const Vec before = numbers(Dtype::f32, V * C, 4), before_positions = numbers(Dtype::f32, T * C, 5);
          const Tensor dtable = k.in(Dtype::f32, {V, C}, before),
                       dpositions = k.in(Dtype::f32, {T, C}, before_positions);
          k.run(embedding_forward(y, t, tab, {}));
          CHECK(k.read(y) == oracle::embedding(table, {}, tokens, {}, int(C)));
          k.run(embedding_forward(y, t, tab, pos));
          check_close("y", k.read(y), oracle::embedding(table, positions, tokens, position, int(C)), dtype);
          k.run(embedding_backward(dtable, dpositions, dyt, t, order));
          if (N == 0) return;
          const oracle::EmbeddingGrad grad = oracle::embedding_backward(dy, tokens, position, int(V), int(T));
          const auto plus = [](Vec a, const Vec& b) {
            for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
            return a;
          };
          check_close("dtable", k.read(dtable), plus(before, grad.dtable), Dtype::f32);
          check_close("dpositions", k.read(dpositions), plus(before_positions, grad.dposition_table), Dtype::f32);
          k.run(embedding_backward(dtable, {}, dyt, t, order));
          check_close("twice", k.read(dtable), plus(plus(before, grad.dtable), grad.dtable), Dtype::f32);
        });
}

TEST_CASE("embedding: the positions that an index names") {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const int64_t C : {3, 64, 127})
      three_ways([&](KernelCheck& k) {
        const int64_t N = 10, V = 7, T = 9, P = 4;
        const Ints tokens = some_tokens(N, V), index{1, 8, 0, 5};
        Ints position;
        for (int64_t n = 0; n < N; ++n) position.push_back(index[size_t(n % P)]);
        const Vec table = numbers(dtype, V * C, 1), positions = numbers(dtype, T * C, 2), dy = numbers(dtype, N * C, 3);
        const Tensor t = k.in({N}, tokens), order = k.in({N}, order_of(tokens)), at = k.in({P}, index),
                     y = k.out(dtype, {N, C}), dyt = k.in(dtype, {N, C}, dy),
                     dtable = k.in(Dtype::f32, {V, C}, Vec(size_t(V * C), 0)),
                     dpositions = k.in(Dtype::f32, {T, C}, Vec(size_t(T * C), 0));
        k.run(embedding_forward(y, t, k.in(dtype, {V, C}, table), k.in(dtype, {T, C}, positions), {}, at));
        check_close("y", k.read(y), oracle::embedding(table, positions, tokens, position, int(C)), dtype);
        k.run(embedding_backward(dtable, dpositions, dyt, t, order, {}, at));
        const oracle::EmbeddingGrad grad = oracle::embedding_backward(dy, tokens, position, int(V), int(T));
        check_close("dtable", k.read(dtable), grad.dtable, Dtype::f32);
        check_close("dpositions", k.read(dpositions), grad.dposition_table, Dtype::f32);
      });
}

TEST_CASE("embedding: parts of a vocabulary on several ranks add up to the whole") {
  const int64_t N = 67, V = 37, ranks = 4, part = (V + ranks - 1) / ranks, T = 20;
  for (const int64_t C : {3, 64, 130})
    for (const bool with_positions : {false, true})
      three_ways([&](KernelCheck& k) {
        const Ints tokens = some_tokens(N, V);
        Vec table = numbers(Dtype::f32, V * C, 1);
        const Vec positions = numbers(Dtype::f32, T * C, 2), dy = numbers(Dtype::f32, N * C, 3);
        const Tensor t = k.in({N}, tokens), order = k.in({N}, order_of(tokens));
        const Tensor pos = with_positions ? k.in(Dtype::f32, {T, C}, positions) : Tensor{};
        const Tensor dyt = k.in(Dtype::f32, {N, C}, dy);
        Ints position;
        for (int64_t n = 0; n < N; ++n) position.push_back(with_positions ? int32_t(n % T) : 0);
        const oracle::EmbeddingGrad grad = oracle::embedding_backward(dy, tokens, position, int(V), int(T));
        const Vec whole = with_positions ? oracle::embedding(table, positions, tokens, position, int(C))
                                         : oracle::embedding(table, {}, tokens, {}, int(C));
        table.resize(size_t(ranks * part * C), 0.0);
        Vec sum(size_t(N * C), 0.0), dtable;
        for (int32_t r = 0; r < ranks; ++r) {
          StepState state;
          state.tensor_rank = r;
          const Tensor s = k.bytes(state), y = k.out(Dtype::f32, {N, C});
          const Vec mine(table.begin() + r * part * C, table.begin() + (r + 1) * part * C);
          k.run(embedding_forward(y, t, k.in(Dtype::f32, {part, C}, mine), pos, s));
          const Vec got = k.read(y);
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += got[i];
          const Tensor d = k.in(Dtype::f32, {part, C}, Vec(size_t(part * C), 0.0));
          const Tensor dpos = with_positions ? k.in(Dtype::f32, {T, C}, Vec(size_t(T * C), 0.0)) : Tensor{};
          k.run(embedding_backward(d, dpos, dyt, t, order, s));
          const Vec rows = k.read(d);
          dtable.insert(dtable.end(), rows.begin(), rows.end());
          if (with_positions) check_close("dpositions", k.read(dpos), grad.dposition_table, Dtype::f32);
        }
        check_close("y", sum, whole, Dtype::f32);
        dtable.resize(size_t(V * C));
        check_close("dtable", dtable, grad.dtable, Dtype::f32);
      });
}

TEST_CASE("embedding: operands that do not fit are refused") {
  KernelCheck k(1);
  const Tensor y = k.out(Dtype::f32, {4, 3}), t = k.out(Dtype::i32, {4}), few = k.out(Dtype::i32, {3}),
               table = k.out(Dtype::f32, {9, 3}), narrow = k.out(Dtype::bf16, {9, 3}), wide = k.out(Dtype::f32, {9, 4});
  CHECK(has(error_of([&] { embedding_forward(y, few, table, {}); }), "tokens are i32[3]"));
  CHECK(has(error_of([&] { embedding_forward(y, t, narrow, {}); }), "table is bf16[9, 3]"));
  CHECK(has(error_of([&] { embedding_forward(y, t, wide, {}); }), "table is f32[9, 4]"));
  CHECK(has(error_of([&] { embedding_forward(y, t, table, wide); }), "positions are f32[9, 4]"));
  CHECK(has(error_of([&] { embedding_backward(table, {}, y, t, few); }), "order is i32[3]"));
  CHECK(has(error_of([&] { embedding_backward(narrow, {}, y, t, t); }), "is bf16[9, 3]"));
  CHECK(has(error_of([&] { embedding_forward(y, t, table, {}, {}, t); }), "index is i32["));
}

TEST_SUITE_END();

} // namespace
} // namespace triax
