#include "model/flops.h"

namespace triax {

namespace {

/// Keys that a position sees, averaged over the positions of a sequence.
double keys_seen(double window, double sequence) {
  return window == 0 || window >= sequence ? sequence / 2 : window - window * window / (2 * sequence);
}

} // namespace

double training_flops_per_token(const ModelConfig& c, int64_t sequence) {
  const double q = double(c.heads * c.head_width), kv = double(c.kv_heads * c.head_width), C = double(c.width);
  const double mlp = (c.activation == Activation::swiglu ? 3.0 : 2.0) * C * double(c.mlp);
  const double weights = double(c.layers) * (C * (q + 2 * kv) + q * C + mlp) + double(c.vocabulary) * C;
  double keys = 0;
  for (int64_t l = 0; l < c.layers; ++l) keys += keys_seen(double(window_of(c, l)), double(sequence));
  return 6 * weights + 12 * q * keys;
}

} // namespace triax
