// The slow truth: every operation as a plain loop in double precision, the reference of all faster ones.
// Tensors are row-major `Vec`s. Letters as everywhere: B batch, T sequence, N = B*T rows, C width, H query heads, G
// key/value heads, D head width, F MLP width, V vocabulary. Sizes that are not passed follow from the sizes of the
// arguments; sizes that do not fit throw.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace triax::oracle {

using Vec = std::vector<double>;
using Ints = std::vector<std::int32_t>;

// ---- Embedding ----

/// y[N, C] = table[V, C][tokens[n]] + position_table[P, C][positions[n]]. An empty `position_table` adds nothing
/// (`positions` is then ignored).
Vec embedding(const Vec& table, const Vec& position_table, const Ints& tokens, const Ints& positions, int C);

struct EmbeddingGrad {
  Vec dtable;          // [V, C]
  Vec dposition_table; // [P, C], empty when P is 0
};
/// dy[N, C] summed into the rows it came from. P = 0: there is no position table.
EmbeddingGrad embedding_backward(const Vec& dy, const Ints& tokens, const Ints& positions, int V, int P);

// ---- Normalisation with a fused residual: sum = x + residual, y = norm(sum) ----

struct Norm {
  Vec sum;  // [N, C]
  Vec y;    // [N, C]
  Vec mean; // [N], empty for rms_norm
  Vec rstd; // [N]: 1 / sqrt(mean square + eps), for layer_norm 1 / sqrt(variance + eps)
};
struct NormGrad {
  Vec dx;      // [N, C], the gradient of x and of the residual alike
  Vec dweight; // [C]
  Vec dbias;   // [C], empty for rms_norm
};

/// y = sum * rstd * weight[C]. An empty `residual` is zero. Zhang and Sennrich 2019 (arXiv 1910.07467), eq. 4.
Norm rms_norm(const Vec& x, const Vec& residual, const Vec& weight, double eps);

/// `sum` as the forward returned it; `dsum` is the gradient that reaches the sum by its other use, empty for none.
NormGrad rms_norm_backward(const Vec& sum, const Vec& weight, const Vec& dy, const Vec& dsum, double eps);

/// y = (sum - mean) * rstd * weight[C] + bias[C], biased variance; an empty `bias` is zero. Ba et al. 2016 (arXiv
/// 1607.06450).
Norm layer_norm(const Vec& x, const Vec& residual, const Vec& weight, const Vec& bias, double eps);

/// As rms_norm_backward; `dbias` is always filled.
NormGrad layer_norm_backward(const Vec& sum, const Vec& weight, const Vec& dy, const Vec& dsum, double eps);

// ---- Rotary positions, half-split: dim i is paired with dim i + D/2 ----

/// x[N, heads, D] with positions[N], inv_freq[D/2]: (a, b) -> scale * (a cos - b sin, b cos + a sin), angle = position
/// * inv_freq[i]. `scale` is yarn's attention factor, otherwise 1. Su et al. 2021 (arXiv 2104.09864), eq. 34, with the
/// pairing of Llama's HF files.
Vec rope(const Vec& x, const Ints& positions, const Vec& inv_freq, double scale);
Vec rope_backward(const Vec& dy, const Ints& positions, const Vec& inv_freq, double scale);

// ---- Activations, elementwise ----

/// gate / (1 + exp(-gate)) * up. Shazeer 2020 (arXiv 2002.05202), eq. 5.
Vec swiglu(const Vec& gate, const Vec& up);
struct SwigluGrad {
  Vec dgate, dup;
};
SwigluGrad swiglu_backward(const Vec& gate, const Vec& up, const Vec& dy);

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Hendrycks and Gimpel 2016 (arXiv 1606.08415), section 2. HF:
/// gelu_new.
Vec gelu_tanh(const Vec& x);
Vec gelu_tanh_backward(const Vec& x, const Vec& dy);

/// x/2 (1 + erf(x / sqrt 2)). HF: gelu.
Vec gelu_erf(const Vec& x);
Vec gelu_erf_backward(const Vec& x, const Vec& dy);

// ---- Causal attention with grouped keys, documents and a sliding window ----

struct AttentionInput {
  int B = 0, T = 0, H = 0, G = 0, D = 0; // G divides H; query head h reads key/value head h / (H/G)
  double scale = 1;                      // of the scores, usually 1 / sqrt(D)
  Vec q = {};                            // [B, T, H, D]
  Vec k = {}, v = {};                    // [B, T, G, D]
  // [B, T]: position t attends to the keys j with document_start[b, t] <= j <= t; empty: all 0.
  Ints document_start = {};
  int window = 0; // of how many positions, itself among them, a position sees the last; 0: of all
};
struct Attention {
  Vec y;   // [B, T, H, D]; 0 for a row with no key
  Vec lse; // [B, H, T]: log of the sum of exp(scale * q.k) over the row's keys; -infinity for a row with no key
};
struct AttentionGrad {
  Vec dq;     // [B, T, H, D]
  Vec dk, dv; // [B, T, G, D]
};
Attention attention(const AttentionInput& in);
/// dy[B, T, H, D]. A row with no key contributes nothing.
AttentionGrad attention_backward(const AttentionInput& in, const Vec& dy);

// ---- Loss ----

struct CrossEntropy {
  double loss_sum = 0;      // natural log, over the counted rows
  std::int64_t counted = 0; // rows whose label is not -1
  Vec losses;               // [N], 0 where not counted
  Vec dlogits;              // [N, V]: scale * (softmax - one-hot), 0 where not counted
};
/// logits[N, V], labels[N] in [0, V) or -1 (not counted). `scale` is the derivative of the objective by `loss_sum`: 1 /
/// counted for a mean.
CrossEntropy cross_entropy(const Vec& logits, const Ints& labels, double scale);

// ---- Optimizer ----

struct AdamwStep {
  std::int64_t step = 1; // the first is 1
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double gradient_scale = 1; // multiplies the gradient before anything else: clipping, loss scale
};
/// m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, p -= lr (weight_decay p + m^ / (sqrt(v^) + eps)), where ^ divides by
/// 1 - b^step. Loshchilov and Hutter 2017 (arXiv 1711.05101), algorithm 2, with the decay multiplied by lr as PyTorch
/// does.
void adamw(const AdamwStep& at, const Vec& gradient, Vec& parameter, Vec& m, Vec& v);

// ---- Sums and products ----

double squared_norm(const Vec& x);

/// x[N, C] -> [C].
Vec column_sum(const Vec& x, int C);

struct MatmulInput {
  int M = 0, N = 0, K = 0;
  bool transpose_a = false, transpose_b = false;
  Vec a = {};          // [M, K], or [K, M] if transpose_a
  Vec b = {};          // [K, N], or [N, K] if transpose_b (a linear layer's weight)
  Vec bias = {};       // [N], empty for none
  Vec accumulate = {}; // [M, N], empty for none: added to the result
};
/// [M, N] = op(a) op(b) + bias + accumulate.
Vec matmul(const MatmulInput& in);

// ---- For tests: inputs and distances ----

/// `count` numbers uniform in [-scale, scale], the same on every machine.
Vec random(std::size_t count, std::uint64_t seed, double scale = 1);

/// Norm of the difference over the norm of `want`; the norm of the difference itself where `want` is all zero.
double relative_error(const Vec& got, const Vec& want);

} // namespace triax::oracle
