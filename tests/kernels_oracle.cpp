// The oracles themselves: every backward against central differences of its forward, and the values that are known.
#include "kernels/check.h"
#include "tests/oracle.h"
#include <cmath>
#include <doctest/doctest.h>
#include <functional>
#include <limits>

namespace triax::oracle {
namespace {

double inner(const Vec& x, const Vec& y) {
  ENSURE(x.size() == y.size(), "an inner product of equal sizes");
  double total = 0;
  for (std::size_t i = 0; i < x.size(); ++i) total += x[i] * y[i];
  return total;
}

/// Checks `gradient` against central differences of `objective` at x. The step is of the order of the cube root of the
/// precision; the error that remains is of the order of its square.
void check_gradient(const char* name, Vec x, const Vec& gradient, const std::function<double(const Vec&)>& objective) {
  CAPTURE(name);
  REQUIRE(gradient.size() == x.size());
  constexpr double kStep = 1e-5;
  Vec differences;
  for (double& value : x) {
    const double at = value;
    value = at + kStep;
    const double above = objective(x);
    value = at - kStep;
    differences.push_back((above - objective(x)) / (2 * kStep));
    value = at;
  }
  CHECK(squared_norm(gradient) > 0);
  CHECK(relative_error(gradient, differences) < 1e-7);
}

bool all_finite(const Vec& x) {
  for (double value : x)
    if (!std::isfinite(value)) return false;
  return true;
}

AttentionInput attention_input(int B, int T, int H, int G, int D, Ints document_start) {
  const std::size_t queries = static_cast<std::size_t>(B) * T * H * D, keys = static_cast<std::size_t>(B) * T * G * D;
  return {.B = B,
          .T = T,
          .H = H,
          .G = G,
          .D = D,
          .scale = 1.3 / std::sqrt(D),
          .q = random(queries, 1, 2),
          .k = random(keys, 2, 2),
          .v = random(keys, 3),
          .document_start = document_start};
}

void check_attention_gradients(const AttentionInput& in) {
  const Vec dy = random(in.q.size(), 4);
  const AttentionGrad grad = attention_backward(in, dy);
  const auto objective_of = [&](Vec AttentionInput::*operand) {
    return [&in, &dy, operand](const Vec& x) {
      AttentionInput moved = in;
      moved.*operand = x;
      return inner(dy, attention(moved).y);
    };
  };
  check_gradient("q", in.q, grad.dq, objective_of(&AttentionInput::q));
  check_gradient("k", in.k, grad.dk, objective_of(&AttentionInput::k));
  check_gradient("v", in.v, grad.dv, objective_of(&AttentionInput::v));
}

} // namespace

TEST_SUITE_BEGIN("kernels_oracle");

TEST_CASE("embedding: repeated tokens add up, with and without positions") {
  const int V = 5, P = 4, C = 3;
  const Ints tokens{4, 0, 4, 2, 4, 0, 1}, positions{0, 1, 2, 0, 1, 2, 3};
  const Vec table = random(V * C, 1), position_table = random(P * C, 2), dy = random(tokens.size() * C, 3);
  const EmbeddingGrad grad = embedding_backward(dy, tokens, positions, V, P);
  check_gradient("table", table, grad.dtable,
                 [&](const Vec& x) { return inner(dy, embedding(x, position_table, tokens, positions, C)); });
  check_gradient("position table", position_table, grad.dposition_table,
                 [&](const Vec& x) { return inner(dy, embedding(table, x, tokens, positions, C)); });

  const EmbeddingGrad alone = embedding_backward(dy, tokens, {}, V, 0);
  CHECK(alone.dtable == grad.dtable);
  CHECK(alone.dposition_table.empty());
  const Vec y = embedding(table, {}, tokens, {}, C);
  CHECK(y[3 * C + 1] == table[2 * C + 1]);
  CHECK_THROWS(embedding(table, {}, {V}, {}, C));
}

TEST_CASE("rms_norm: gradients of sum and weight, the sum also used elsewhere") {
  const std::size_t N = 5, C = 7;
  const double eps = 1e-2;
  const Vec x = random(N * C, 1), residual = random(N * C, 2), weight = random(C, 3), dy = random(N * C, 4),
            dsum = random(N * C, 5);
  const Norm forward = rms_norm(x, residual, weight, eps);
  const NormGrad grad = rms_norm_backward(forward.sum, weight, dy, dsum, eps);
  const auto objective = [&](const Norm& norm) { return inner(dy, norm.y) + inner(dsum, norm.sum); };
  check_gradient("x", x, grad.dx, [&](const Vec& v) { return objective(rms_norm(v, residual, weight, eps)); });
  check_gradient("residual", residual, grad.dx, [&](const Vec& v) { return objective(rms_norm(x, v, weight, eps)); });
  check_gradient("weight", weight, grad.dweight,
                 [&](const Vec& v) { return objective(rms_norm(x, residual, v, eps)); });
  CHECK(grad.dbias.empty());

  CHECK(rms_norm({3, -4}, {}, {1, 2}, 3.5).y == Vec{0.75, -2}); // mean square 12.5, root of 16
}

TEST_CASE("rms_norm: a zero weight and a zero row stay finite and exact") {
  const std::size_t N = 3, C = 5;
  const double eps = 1e-2;
  Vec x = random(N * C, 1), weight = random(C, 2);
  const Vec dy = random(N * C, 3);
  weight[2] = 0;
  for (std::size_t c = 0; c < C; ++c) x[C + c] = 0;
  const Norm forward = rms_norm(x, {}, weight, eps);
  const NormGrad grad = rms_norm_backward(x, weight, dy, {}, eps);
  CHECK(all_finite(forward.y));
  CHECK(all_finite(grad.dx));
  check_gradient("x", x, grad.dx, [&](const Vec& v) { return inner(dy, rms_norm(v, {}, weight, eps).y); });
  double dweight = 0; // sum of dy * xhat, also where the weight is 0
  for (std::size_t n = 0; n < N; ++n) dweight += dy[n * C + 2] * x[n * C + 2] * forward.rstd[n];
  CHECK(grad.dweight[2] == doctest::Approx(dweight).epsilon(1e-14));

  Vec only_there(N * C); // a gradient that arrives in the zero channel alone does not reach x
  for (std::size_t n = 0; n < N; ++n) only_there[n * C + 2] = 1;
  CHECK(squared_norm(rms_norm_backward(x, weight, only_there, {}, eps).dx) == 0);
}

TEST_CASE("layer_norm: gradients of sum, weight and bias, the sum also used elsewhere") {
  const std::size_t N = 3, C = 11;
  const double eps = 1e-2;
  const Vec x = random(N * C, 1), residual = random(N * C, 2), weight = random(C, 3), bias = random(C, 4),
            dy = random(N * C, 5), dsum = random(N * C, 6);
  const Norm forward = layer_norm(x, residual, weight, bias, eps);
  const NormGrad grad = layer_norm_backward(forward.sum, weight, dy, dsum, eps);
  const auto objective = [&](const Norm& norm) { return inner(dy, norm.y) + inner(dsum, norm.sum); };
  check_gradient("x", x, grad.dx, [&](const Vec& v) { return objective(layer_norm(v, residual, weight, bias, eps)); });
  check_gradient("residual", residual, grad.dx,
                 [&](const Vec& v) { return objective(layer_norm(x, v, weight, bias, eps)); });
  check_gradient("weight", weight, grad.dweight,
                 [&](const Vec& v) { return objective(layer_norm(x, residual, v, bias, eps)); });
  check_gradient("bias", bias, grad.dbias,
                 [&](const Vec& v) { return objective(layer_norm(x, residual, weight, v, eps)); });
  CHECK(relative_error(grad.dbias, column_sum(dy, C)) < 1e-15);

  const Norm known = layer_norm({1, 5}, {}, {2, 2}, {0, 7}, 12); // variance 4, root of 16
  CHECK(known.mean[0] == 3);
  CHECK(known.rstd[0] == 0.25);
  CHECK(known.y == Vec{-1, 8});
}

TEST_CASE("rope: the gradient is the inverse rotation") {
  const std::size_t N = 5, heads = 3, D = 6;
  const Ints positions{0, 1, 2, 0, 1};
  const Vec inv_freq{1, 0.3, 0.01}, x = random(N * heads * D, 1), dy = random(N * heads * D, 2);
  check_gradient("x", x, rope_backward(dy, positions, inv_freq, 1.25),
                 [&](const Vec& v) { return inner(dy, rope(v, positions, inv_freq, 1.25)); });
  const Vec y = rope(x, positions, inv_freq, 1);
  CHECK(relative_error(rope_backward(y, positions, inv_freq, 1), x) < 1e-15);
  for (std::size_t i = 0; i < heads * D; ++i) CHECK(y[i] == x[i]); // position 0
  const Vec turned = rope({1, 10, 0, 0}, {1}, {2, 0}, 1);          // pairs are (0, 2) and (1, 3)
  CHECK(relative_error(turned, {std::cos(2), 10, std::sin(2), 0}) < 1e-15);
}

TEST_CASE("swiglu: gradients and limits") {
  const Vec gate = random(23, 1, 4), up = random(23, 2), dy = random(23, 3);
  const SwigluGrad grad = swiglu_backward(gate, up, dy);
  check_gradient("gate", gate, grad.dgate, [&](const Vec& v) { return inner(dy, swiglu(v, up)); });
  check_gradient("up", up, grad.dup, [&](const Vec& v) { return inner(dy, swiglu(gate, v)); });
  CHECK(swiglu({0, 1000, -1000, 1}, {3, 2, 2, 2}) == Vec{0, 2000, 0, 2 / (1 + std::exp(-1.0))});
  CHECK(all_finite(swiglu_backward({1000, -1000}, {2, 2}, {1, 1}).dgate));
}

TEST_CASE("gelu: gradients") {
  const Vec x = random(31, 1, 4), dy = random(31, 2);
  check_gradient("tanh", x, gelu_tanh_backward(x, dy), [&](const Vec& v) { return inner(dy, gelu_tanh(v)); });
  check_gradient("erf", x, gelu_erf_backward(x, dy), [&](const Vec& v) { return inner(dy, gelu_erf(v)); });
}

TEST_CASE("gelu: known values, also far out") {
  const Vec x{-100, -20, -3, -1, 0, 1, 3, 20, 100}, ones(x.size(), 1);
  const Vec slopes{0, 0, -0.011584167, -0.082964084, 0.5, 1.082964084, 1.011584167, 1, 1};
  const Vec got = gelu_tanh_backward(x, ones);
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::abs(got[i] - slopes[i]) < 1e-9);
  CHECK(std::abs(gelu_tanh({1})[0] - 0.841191990608) < 1e-12);

  // x Phi(x) and Phi(x) + x phi(x) of the normal distribution.
  CHECK(std::abs(gelu_erf({1})[0] - 0.841344746068543) < 1e-15);
  CHECK(std::abs(gelu_erf({-1})[0] + 0.158655253931457) < 1e-15);
  CHECK(std::abs(gelu_erf_backward({1}, {1})[0] - 1.083315470587686) < 1e-15);
  const Vec far = gelu_erf_backward({-100, 0, 100}, {1, 1, 1});
  CHECK(far == Vec{0, 0.5, 1});
}

TEST_CASE("attention: gradients for one, some and all key heads, with documents") {
  check_attention_gradients(attention_input(2, 5, 6, 2, 3, {}));
  check_attention_gradients(attention_input(1, 7, 3, 1, 5, {0, 0, 2, 2, 2, 5, 5}));
  check_attention_gradients(attention_input(2, 4, 2, 2, 2, {0, 1, 1, 1, 0, 0, 0, 3}));
}

TEST_CASE("attention: a window is a document that starts so many positions back") {
  AttentionInput in = attention_input(1, 6, 2, 1, 3, {0, 0, 0, 0, 3, 3});
  in.window = 3;
  const AttentionInput documents = attention_input(1, 6, 2, 1, 3, {0, 0, 0, 1, 3, 3});
  CHECK(attention(in).y == attention(documents).y);
  check_attention_gradients(in);
}

TEST_CASE("attention: known values") {
  AttentionInput in = attention_input(1, 3, 2, 1, 2, {});
  const Attention first = attention(in);
  for (int h = 0; h < 2; ++h) { // the first position sees itself alone
    CHECK(first.y[h * 2] == in.v[0]);
    CHECK(first.lse[h * 3] == doctest::Approx(in.scale * inner({in.q[h * 2], in.q[h * 2 + 1]}, {in.k[0], in.k[1]})));
  }
  in.k.assign(in.k.size(), 0); // equal scores: the mean of the values so far
  const Attention mean = attention(in);
  CHECK(mean.y[2 * 4 + 3] == doctest::Approx((in.v[1] + in.v[3] + in.v[5]) / 3));
  CHECK(mean.lse[3 + 2] == doctest::Approx(std::log(3)));
  in.k.assign(in.k.size(), 1e4); // scores that overflow exp
  CHECK(all_finite(attention(in).y));
}

TEST_CASE("attention: neighbouring query heads share a key head") {
  const AttentionInput grouped = attention_input(2, 3, 4, 2, 2, {});
  AttentionInput repeated = grouped;
  repeated.G = 4;
  const auto repeat = [](const Vec& x) { // [B, T, G, D] -> [B, T, H, D]
    Vec y;
    for (std::size_t head = 0; head < x.size() / 2; ++head)
      for (int copy = 0; copy < 2; ++copy) y.insert(y.end(), {x[head * 2], x[head * 2 + 1]});
    return y;
  };
  repeated.k = repeat(grouped.k);
  repeated.v = repeat(grouped.v);
  CHECK(attention(grouped).y == attention(repeated).y);
  CHECK(attention(grouped).lse == attention(repeated).lse);
}

TEST_CASE("attention: a document sees what it would see alone") {
  const AttentionInput both = attention_input(1, 5, 2, 1, 3, {0, 0, 2, 2, 2});
  AttentionInput second = both;
  second.T = 3;
  second.document_start.clear();
  second.q.erase(second.q.begin(), second.q.begin() + 2 * 2 * 3);
  second.k.erase(second.k.begin(), second.k.begin() + 2 * 3);
  second.v.erase(second.v.begin(), second.v.begin() + 2 * 3);
  const Vec y = attention(both).y;
  CHECK(Vec(y.begin() + 2 * 2 * 3, y.end()) == attention(second).y);
}

TEST_CASE("attention: a row with no key is zero, the others do not notice") {
  AttentionInput in = attention_input(1, 5, 2, 1, 3, {0, 0, 3, 3, 3}); // position 2 starts after itself
  const Attention masked = attention(in);
  const Vec dy = random(in.q.size(), 9);
  const AttentionGrad grad = attention_backward(in, dy);
  for (int i = 0; i < 6; ++i) {
    CHECK(masked.y[2 * 6 + i] == 0);
    CHECK(grad.dq[2 * 6 + i] == 0);
  }
  CHECK(masked.lse[2] == -std::numeric_limits<double>::infinity());
  for (int i = 0; i < 3; ++i) { // nobody attends to key 2
    CHECK(grad.dk[2 * 3 + i] == 0);
    CHECK(grad.dv[2 * 3 + i] == 0);
  }
  CHECK(all_finite(grad.dk));
  check_attention_gradients(in);

  in.document_start[2] = 2;
  const Vec open = attention(in).y;
  for (int i = 0; i < 5 * 6; ++i)
    if (i / 6 != 2) CHECK(open[i] == masked.y[i]);
}

TEST_CASE("cross_entropy: gradient, known values, large logits") {
  const std::size_t N = 4, V = 7;
  const Vec logits = random(N * V, 1, 3);
  const Ints labels{6, -1, 0, 3};
  const CrossEntropy out = cross_entropy(logits, labels, 0.4);
  check_gradient("logits", logits, out.dlogits,
                 [&](const Vec& v) { return 0.4 * cross_entropy(v, labels, 1).loss_sum; });
  CHECK(out.counted == 3);
  CHECK(out.losses[1] == 0);
  for (std::size_t v = 0; v < V; ++v) CHECK(out.dlogits[V + v] == 0);

  CHECK(cross_entropy(Vec(V, 5), {2}, 1).loss_sum == doctest::Approx(std::log(7)).epsilon(1e-15));
  const CrossEntropy large = cross_entropy({1e4, -1e4, 1e4}, {1}, 1);
  CHECK(large.loss_sum == doctest::Approx(2e4 + std::log(2)).epsilon(1e-15));
  CHECK(large.dlogits == Vec{0.5, -1, 0.5});
  CHECK_THROWS(cross_entropy(logits, {7, 0, 0, 0}, 1));
}

TEST_CASE("cross_entropy: all labels masked") {
  const CrossEntropy out = cross_entropy(random(3 * 5, 1), {-1, -1, -1}, 1);
  CHECK(out.loss_sum == 0);
  CHECK(out.counted == 0);
  CHECK(squared_norm(out.dlogits) == 0);
}

TEST_CASE("adamw: three steps as torch.optim.AdamW takes them in float64") {
  // lr 0.01, betas (0.9, 0.95), eps 1e-8, weight_decay 0.1; PyTorch 1.13.
  Vec parameter{0.5, -1.25, 2.0}, m(3), v(3);
  AdamwStep at{.learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  const std::vector<Vec> gradients{{0.3, -0.2, 0}, {-1, 0.05, 4}, {0.7, 0.6, -2.5}};
  const std::vector<Vec> after{{0.4895000003333333, -1.2387500005, 1.998},
                               {0.4941600783851549, -1.2327635915319066, 1.9886524000026216},
                               {0.4934486405552924, -1.236299419383658, 1.9851835402028308}};
  for (std::size_t i = 0; i < 3; ++i) {
    at.step = static_cast<std::int64_t>(i) + 1;
    adamw(at, gradients[i], parameter, m, v);
    CHECK(relative_error(parameter, after[i]) < 1e-14);
  }
  CHECK(relative_error(m, {0.0043, 0.0483, 0.11}) < 1e-14);
  CHECK(relative_error(v, {0.07606125, 0.01992375, 1.0725}) < 1e-14);
}

TEST_CASE("adamw: the gradient scale comes first, the decay is decoupled") {
  const Vec start = random(9, 1), gradient = random(9, 2);
  const Vec halved = [&] {
    Vec g = gradient;
    for (double& value : g) value *= 0.5;
    return g;
  }();
  Vec p = start, m(9), v(9), q = start, mq(9), vq(9);
  adamw({.learning_rate = 0.1, .gradient_scale = 0.5}, gradient, p, m, v);
  adamw({.learning_rate = 0.1}, halved, q, mq, vq);
  CHECK(p == q);
  CHECK(v == vq);

  Vec decayed = start, zero(9), zero2(9);
  adamw({.learning_rate = 0.1, .weight_decay = 0.5}, Vec(9), decayed, zero, zero2);
  for (std::size_t i = 0; i < 9; ++i) CHECK(decayed[i] == doctest::Approx(0.95 * start[i]).epsilon(1e-15));
}

TEST_CASE("matmul: all transposes agree with differences, bias and accumulate add") {
  const int M = 3, N = 5, K = 7;
  const Vec bias = random(N, 3), before = random(M * N, 4), dc = random(M * N, 5);
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      CAPTURE(ta);
      CAPTURE(tb);
      const MatmulInput in{.M = M,
                           .N = N,
                           .K = K,
                           .transpose_a = ta,
                           .transpose_b = tb,
                           .a = random(M * K, 1),
                           .b = random(K * N, 2),
                           .bias = bias,
                           .accumulate = before};
      const auto objective_of = [&](Vec MatmulInput::*operand) {
        return [&, operand](const Vec& x) {
          MatmulInput moved = in;
          moved.*operand = x;
          return inner(dc, matmul(moved));
        };
      };
      // da = dc b^T and db = a^T dc, or their transposes where the operand is stored transposed.
      const Vec da = ta ? matmul({.M = K, .N = M, .K = N, .transpose_a = tb, .transpose_b = true, .a = in.b, .b = dc})
                        : matmul({.M = M, .N = K, .K = N, .transpose_b = !tb, .a = dc, .b = in.b});
      const Vec db = tb ? matmul({.M = N, .N = K, .K = M, .transpose_a = true, .transpose_b = ta, .a = dc, .b = in.a})
                        : matmul({.M = K, .N = N, .K = M, .transpose_a = !ta, .a = in.a, .b = dc});
      check_gradient("a", in.a, da, objective_of(&MatmulInput::a));
      check_gradient("b", in.b, db, objective_of(&MatmulInput::b));
      check_gradient("bias", bias, column_sum(dc, N), objective_of(&MatmulInput::bias));
      check_gradient("accumulate", before, dc, objective_of(&MatmulInput::accumulate));
    }
  CHECK(matmul({.M = 2, .N = 1, .K = 2, .a = {1, 2, 3, 4}, .b = {10, 1}, .bias = {5}}) == Vec{17, 39});
  CHECK_THROWS(matmul({.M = 2, .N = 2, .K = 2, .a = {1}, .b = {1, 2, 3, 4}}));
}

TEST_CASE("sums, random numbers and distances") {
  CHECK(squared_norm({3, -4}) == 25);
  CHECK(column_sum({1, 2, 3, 4, 5, 6}, 3) == Vec{5, 7, 9});
  CHECK_THROWS(column_sum({1, 2, 3}, 2));
  CHECK(relative_error({1, 1}, {1, 0}) == 1);
  CHECK(relative_error({3, 4}, {0, 0}) == 5);
  const Vec x = random(1000, 7, 2);
  CHECK(x == random(1000, 7, 2));
  CHECK(x != random(1000, 8, 2));
  for (double value : x) CHECK(std::abs(value) <= 2);
  CHECK(squared_norm(x) / 1000 == doctest::Approx(4.0 / 3).epsilon(0.1));
}

TEST_SUITE_END();

} // namespace triax::oracle
