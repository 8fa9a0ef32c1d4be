// Plain loops, written to be compared with the formula and not to be fast.
#include "tests/oracle.h"
#include "kernels/check.h"
#include <algorithm>
#include <cmath>
#include <random>

namespace triax::oracle {
namespace {

constexpr double kPi = 3.14159265358979323846;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// tanh(u) + 1 = 2 sigmoid(2u), which keeps its relative precision where tanh is near -1. This is 2u.
double gelu_argument(double x) { return 2 * std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x); }

Vec add(const Vec& x, const Vec& residual) {
  if (residual.empty()) return x;
  ENSURE(residual.size() == x.size(), "the residual has the shape of x");
  Vec sum = x;
  for (std::size_t i = 0; i < x.size(); ++i) sum[i] += residual[i];
  return sum;
}

template <class F> Vec each(const Vec& x, F f) {
  Vec y;
  y.reserve(x.size());
  for (double value : x) y.push_back(f(value));
  return y;
}

template <class F> Vec each(const Vec& x, const Vec& dy, F f) {
  ENSURE(x.size() == dy.size(), "two operands of one shape");
  Vec y;
  y.reserve(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y.push_back(f(x[i], dy[i]));
  return y;
}

std::size_t rows(const Vec& x, std::size_t width) {
  ENSURE(width > 0 && x.size() % width == 0, x.size(), " elements are whole rows of ", width);
  return x.size() / width;
}

} // namespace

Vec embedding(const Vec& table, const Vec& position_table, const Ints& tokens, const Ints& positions, int C) {
  Vec y;
  y.reserve(tokens.size() * C);
  for (std::size_t n = 0; n < tokens.size(); ++n)
    for (int c = 0; c < C; ++c)
      y.push_back(table.at(tokens[n] * C + c) +
                  (position_table.empty() ? 0 : position_table.at(positions.at(n) * C + c)));
  return y;
}

EmbeddingGrad embedding_backward(const Vec& dy, const Ints& tokens, const Ints& positions, int V, int P) {
  ENSURE(!tokens.empty() && dy.size() % tokens.size() == 0, "dy has one row a token");
  const std::size_t C = dy.size() / tokens.size();
  EmbeddingGrad grad{Vec(V * C), Vec(P * C)};
  for (std::size_t n = 0; n < tokens.size(); ++n)
    for (std::size_t c = 0; c < C; ++c) {
      grad.dtable.at(tokens[n] * C + c) += dy[n * C + c];
      if (P > 0) grad.dposition_table.at(positions.at(n) * C + c) += dy[n * C + c];
    }
  return grad;
}

Norm rms_norm(const Vec& x, const Vec& residual, const Vec& weight, double eps) {
  const std::size_t C = weight.size(), N = rows(x, C);
  Norm out{add(x, residual), Vec(N * C), {}, Vec(N)};
  for (std::size_t n = 0; n < N; ++n) {
    const double* row = &out.sum[n * C];
    double squares = 0;
    for (std::size_t c = 0; c < C; ++c) squares += row[c] * row[c];
    out.rstd[n] = 1 / std::sqrt(squares / C + eps);
    for (std::size_t c = 0; c < C; ++c) out.y[n * C + c] = row[c] * out.rstd[n] * weight[c];
  }
  return out;
}

// With xhat = sum * rstd and g = dy * weight: dsum = rstd * (g - xhat * mean(g * xhat)).
NormGrad rms_norm_backward(const Vec& sum, const Vec& weight, const Vec& dy, const Vec& dsum, double eps) {
  ENSURE(dy.size() == sum.size(), "dy has the shape of the sum");
  const std::size_t C = weight.size(), N = rows(sum, C);
  const Vec rstd = rms_norm(sum, {}, weight, eps).rstd;
  NormGrad grad{Vec(N * C), Vec(C), {}};
  for (std::size_t n = 0; n < N; ++n) {
    double mean_gx = 0;
    for (std::size_t c = 0; c < C; ++c) {
      const double xhat = sum[n * C + c] * rstd[n];
      mean_gx += dy[n * C + c] * weight[c] * xhat / C;
      grad.dweight[c] += dy[n * C + c] * xhat;
    }
    for (std::size_t c = 0; c < C; ++c)
      grad.dx[n * C + c] = rstd[n] * (dy[n * C + c] * weight[c] - sum[n * C + c] * rstd[n] * mean_gx);
  }
  grad.dx = add(grad.dx, dsum);
  return grad;
}

Norm layer_norm(const Vec& x, const Vec& residual, const Vec& weight, const Vec& bias, double eps) {
  ENSURE(bias.empty() || bias.size() == weight.size(), "the bias has the shape of the weight");
  const std::size_t C = weight.size(), N = rows(x, C);
  Norm out{add(x, residual), Vec(N * C), Vec(N), Vec(N)};
  for (std::size_t n = 0; n < N; ++n) {
    const double* row = &out.sum[n * C];
    for (std::size_t c = 0; c < C; ++c) out.mean[n] += row[c] / C;
    double variance = 0;
    for (std::size_t c = 0; c < C; ++c) variance += (row[c] - out.mean[n]) * (row[c] - out.mean[n]) / C;
    out.rstd[n] = 1 / std::sqrt(variance + eps);
    for (std::size_t c = 0; c < C; ++c)
      out.y[n * C + c] = (row[c] - out.mean[n]) * out.rstd[n] * weight[c] + (bias.empty() ? 0 : bias[c]);
  }
  return out;
}

// With xhat = (sum - mean) * rstd and g = dy * weight: dsum = rstd * (g - mean(g) - xhat * mean(g * xhat)).
NormGrad layer_norm_backward(const Vec& sum, const Vec& weight, const Vec& dy, const Vec& dsum, double eps) {
  ENSURE(dy.size() == sum.size(), "dy has the shape of the sum");
  const std::size_t C = weight.size(), N = rows(sum, C);
  const Norm forward = layer_norm(sum, {}, weight, {}, eps);
  NormGrad grad{Vec(N * C), Vec(C), Vec(C)};
  for (std::size_t n = 0; n < N; ++n) {
    const auto xhat = [&](std::size_t c) { return (sum[n * C + c] - forward.mean[n]) * forward.rstd[n]; };
    double mean_g = 0, mean_gx = 0;
    for (std::size_t c = 0; c < C; ++c) {
      mean_g += dy[n * C + c] * weight[c] / C;
      mean_gx += dy[n * C + c] * weight[c] * xhat(c) / C;
      grad.dweight[c] += dy[n * C + c] * xhat(c);
      grad.dbias[c] += dy[n * C + c];
    }
    for (std::size_t c = 0; c < C; ++c)
      grad.dx[n * C + c] = forward.rstd[n] * (dy[n * C + c] * weight[c] - mean_g - xhat(c) * mean_gx);
  }
  grad.dx = add(grad.dx, dsum);
  return grad;
}

namespace {

// `direction` 1 rotates forward, -1 back; the transpose of a rotation is its inverse.
Vec rotate(const Vec& x, const Ints& positions, const Vec& inv_freq, double scale, int direction) {
  const std::size_t half = inv_freq.size(), D = 2 * half;
  ENSURE(!positions.empty() && x.size() % (positions.size() * D) == 0, "x is [N, heads, D]");
  const std::size_t N = positions.size(), heads = x.size() / (N * D);
  Vec y(x.size());
  for (std::size_t n = 0; n < N; ++n)
    for (std::size_t head = 0; head < heads; ++head)
      for (std::size_t i = 0; i < half; ++i) {
        const std::size_t at = (n * heads + head) * D + i;
        const double angle = positions[n] * inv_freq[i] * direction;
        y[at] = scale * (x[at] * std::cos(angle) - x[at + half] * std::sin(angle));
        y[at + half] = scale * (x[at + half] * std::cos(angle) + x[at] * std::sin(angle));
      }
  return y;
}

} // namespace

Vec rope(const Vec& x, const Ints& positions, const Vec& inv_freq, double scale) {
  return rotate(x, positions, inv_freq, scale, 1);
}

Vec rope_backward(const Vec& dy, const Ints& positions, const Vec& inv_freq, double scale) {
  return rotate(dy, positions, inv_freq, scale, -1);
}

Vec swiglu(const Vec& gate, const Vec& up) {
  return each(gate, up, [](double g, double u) { return g * sigmoid(g) * u; });
}

SwigluGrad swiglu_backward(const Vec& gate, const Vec& up, const Vec& dy) {
  ENSURE(gate.size() == up.size() && gate.size() == dy.size(), "three operands of one shape");
  SwigluGrad grad;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double s = sigmoid(gate[i]);
    grad.dgate.push_back(dy[i] * up[i] * (s + gate[i] * s * (1 - s)));
    grad.dup.push_back(dy[i] * gate[i] * s);
  }
  return grad;
}

Vec gelu_tanh(const Vec& x) {
  return each(x, [](double v) { return v * sigmoid(gelu_argument(v)); });
}

Vec gelu_tanh_backward(const Vec& x, const Vec& dy) {
  return each(x, dy, [](double v, double d) {
    const double s = sigmoid(gelu_argument(v));
    const double slope = 2 * std::sqrt(2 / kPi) * (1 + 3 * 0.044715 * v * v);
    return d * (s + v * s * (1 - s) * slope);
  });
}

Vec gelu_erf(const Vec& x) {
  return each(x, [](double v) { return v / 2 * std::erfc(-v / std::sqrt(2.0)); });
}

Vec gelu_erf_backward(const Vec& x, const Vec& dy) {
  return each(x, dy, [](double v, double d) {
    const double density = std::exp(-v * v / 2) / std::sqrt(2 * kPi);
    return d * (std::erfc(-v / std::sqrt(2.0)) / 2 + v * density);
  });
}

CrossEntropy cross_entropy(const Vec& logits, const Ints& labels, double scale) {
  ENSURE(!labels.empty() && logits.size() % labels.size() == 0, "logits have one row a label");
  const std::size_t N = labels.size(), V = logits.size() / N;
  CrossEntropy out{0, 0, Vec(N), Vec(N * V)};
  for (std::size_t n = 0; n < N; ++n) {
    if (labels[n] == -1) continue;
    ENSURE(labels[n] >= 0 && static_cast<std::size_t>(labels[n]) < V, "label ", labels[n], " of ", V);
    const double* row = &logits[n * V];
    double largest = row[0], total = 0;
    for (std::size_t v = 1; v < V; ++v) largest = std::max(largest, row[v]);
    for (std::size_t v = 0; v < V; ++v) total += std::exp(row[v] - largest);
    out.losses[n] = std::log(total) + largest - row[labels[n]];
    out.loss_sum += out.losses[n];
    ++out.counted;
    for (std::size_t v = 0; v < V; ++v) out.dlogits[n * V + v] = scale * std::exp(row[v] - largest) / total;
    out.dlogits[n * V + labels[n]] -= scale;
  }
  return out;
}

void adamw(const AdamwStep& at, const Vec& gradient, Vec& parameter, Vec& m, Vec& v) {
  ENSURE(gradient.size() == parameter.size() && m.size() == parameter.size() && v.size() == parameter.size(),
         "gradient, parameter and moments have one shape");
  for (std::size_t i = 0; i < parameter.size(); ++i) {
    const double g = gradient[i] * at.gradient_scale;
    m[i] = at.beta1 * m[i] + (1 - at.beta1) * g;
    v[i] = at.beta2 * v[i] + (1 - at.beta2) * g * g;
    const double m_hat = m[i] / (1 - std::pow(at.beta1, at.step)), v_hat = v[i] / (1 - std::pow(at.beta2, at.step));
    parameter[i] -= at.learning_rate * (at.weight_decay * parameter[i] + m_hat / (std::sqrt(v_hat) + at.eps));
  }
}

double squared_norm(const Vec& x) {
  double total = 0;
  for (double value : x) total += value * value;
  return total;
}

Vec column_sum(const Vec& x, int C) {
  Vec sums(C);
  for (std::size_t n = 0; n < rows(x, C); ++n)
    for (int c = 0; c < C; ++c) sums[c] += x[n * C + c];
  return sums;
}

Vec matmul(const MatmulInput& in) {
  const std::size_t M = in.M, N = in.N, K = in.K;
  ENSURE(in.a.size() == M * K && in.b.size() == K * N, "a is [M, K] and b is [K, N]");
  ENSURE(in.bias.empty() || in.bias.size() == N, "bias is [N]");
  ENSURE(in.accumulate.empty() || in.accumulate.size() == M * N, "accumulate is [M, N]");
  Vec c = in.accumulate.empty() ? Vec(M * N) : in.accumulate;
  for (std::size_t i = 0; i < M; ++i)
    for (std::size_t j = 0; j < N; ++j) {
      double total = in.bias.empty() ? 0 : in.bias[j];
      for (std::size_t k = 0; k < K; ++k)
        total += in.a[in.transpose_a ? k * M + i : i * K + k] * in.b[in.transpose_b ? j * K + k : k * N + j];
      c[i * N + j] += total;
    }
  return c;
}

Vec random(std::size_t count, std::uint64_t seed, double scale) {
  std::mt19937_64 bits(seed); // its output is fixed by the standard; the standard's distributions are not
  Vec x(count);
  for (double& value : x) value = scale * (2 * static_cast<double>(bits() >> 11) / 9007199254740992.0 - 1);
  return x;
}

double relative_error(const Vec& got, const Vec& want) {
  ENSURE(got.size() == want.size(), "compared tensors have one shape");
  double difference = 0;
  for (std::size_t i = 0; i < got.size(); ++i) difference += (got[i] - want[i]) * (got[i] - want[i]);
  const double norm = squared_norm(want);
  return std::sqrt(norm > 0 ? difference / norm : difference);
}

} // namespace triax::oracle
