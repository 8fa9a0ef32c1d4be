// Attention, row by row: the scores of one query are computed, normalised and used before the next is looked at.
#include "kernels/check.h"
#include "tests/oracle.h"
#include <algorithm>
#include <cmath>
#include <limits>

namespace triax::oracle {
namespace {

// One query row (b, t, h): which keys it sees, and with which probability.
struct Row {
  std::size_t q;     // offset of q[b, t, h, 0]
  int first = 0;     // key of probabilities[0]
  Vec probabilities; // empty where the row has no key
  double lse = -std::numeric_limits<double>::infinity();
};

// Offset of k[b, j, g, 0], g being the key head that query head h reads.
std::size_t key_at(const AttentionInput& in, int b, int j, int h) {
  return ((static_cast<std::size_t>(b) * in.T + j) * in.G + h / (in.H / in.G)) * in.D;
}

double dot(const double* x, const double* y, int count) {
  double total = 0;
  for (int i = 0; i < count; ++i) total += x[i] * y[i];
  return total;
}

void check_shapes(const AttentionInput& in) {
  const std::size_t N = static_cast<std::size_t>(in.B) * in.T;
  ENSURE(in.G > 0 && in.H % in.G == 0, "G divides H");
  ENSURE(in.q.size() == N * in.H * in.D, "q is [B, T, H, D]");
  ENSURE(in.k.size() == N * in.G * in.D && in.v.size() == in.k.size(), "k and v are [B, T, G, D]");
  ENSURE(in.document_start.empty() || in.document_start.size() == N, "document_start is [B, T]");
}

Row softmax_row(const AttentionInput& in, int b, int t, int h) {
  Row row;
  const std::size_t n = static_cast<std::size_t>(b) * in.T + t;
  row.q = (n * in.H + h) * in.D;
  row.first = in.document_start.empty() ? 0 : in.document_start[n];
  ENSURE(row.first >= 0, "a document starts inside its row");
  if (in.window > 0) row.first = std::max(row.first, t - in.window + 1);
  for (int j = row.first; j <= t; ++j)
    row.probabilities.push_back(in.scale * dot(&in.q[row.q], &in.k[key_at(in, b, j, h)], in.D));
  if (row.probabilities.empty()) return row;
  const double largest = *std::max_element(row.probabilities.begin(), row.probabilities.end());
  double total = 0;
  for (double score : row.probabilities) total += std::exp(score - largest);
  row.lse = std::log(total) + largest;
  for (double& score : row.probabilities) score = std::exp(score - largest) / total;
  return row;
}

} // namespace

Attention attention(const AttentionInput& in) {
  check_shapes(in);
  Attention out{Vec(in.q.size()), Vec(static_cast<std::size_t>(in.B) * in.H * in.T)};
  for (int b = 0; b < in.B; ++b)
    for (int h = 0; h < in.H; ++h)
      for (int t = 0; t < in.T; ++t) {
        const Row row = softmax_row(in, b, t, h);
        out.lse[(static_cast<std::size_t>(b) * in.H + h) * in.T + t] = row.lse;
        for (std::size_t i = 0; i < row.probabilities.size(); ++i)
          for (int d = 0; d < in.D; ++d)
            out.y[row.q + d] += row.probabilities[i] * in.v[key_at(in, b, row.first + i, h) + d];
      }
  return out;
}

// dp = dy.v, ds = p (dp - sum p dp), dq = scale ds k, dk = scale ds q, dv = p dy. Dao et al. 2022 (arXiv 2205.14135),
// B.2.
AttentionGrad attention_backward(const AttentionInput& in, const Vec& dy) {
  check_shapes(in);
  ENSURE(dy.size() == in.q.size(), "dy is [B, T, H, D]");
  AttentionGrad grad{Vec(in.q.size()), Vec(in.k.size()), Vec(in.v.size())};
  for (int b = 0; b < in.B; ++b)
    for (int h = 0; h < in.H; ++h)
      for (int t = 0; t < in.T; ++t) {
        const Row row = softmax_row(in, b, t, h);
        Vec dp;
        for (std::size_t i = 0; i < row.probabilities.size(); ++i)
          dp.push_back(dot(&dy[row.q], &in.v[key_at(in, b, row.first + i, h)], in.D));
        const double delta = dot(row.probabilities.data(), dp.data(), static_cast<int>(dp.size()));
        for (std::size_t i = 0; i < row.probabilities.size(); ++i) {
          const std::size_t key = key_at(in, b, row.first + i, h);
          const double ds = in.scale * row.probabilities[i] * (dp[i] - delta);
          for (int d = 0; d < in.D; ++d) {
            grad.dq[row.q + d] += ds * in.k[key + d];
            grad.dk[key + d] += ds * in.q[row.q + d];
            grad.dv[key + d] += row.probabilities[i] * dy[row.q + d];
          }
        }
      }
  return grad;
}

} // namespace triax::oracle
