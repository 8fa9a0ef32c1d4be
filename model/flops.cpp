#include "model/flops.h"

namespace triax {

double training_flops_per_token(const ModelConfig& c, int64_t sequence) {
  const double q = double(c.heads * c.head_width), kv = double(c.kv_heads * c.head_width), C = double(c.width);
  const double mlp = (c.activation == Activation::swiglu ? 3.0 : 2.0) * C * double(c.mlp);
  const double weights = double(c.layers) * (C * (q + 2 * kv) + q * C + mlp) + double(c.vocabulary) * C;
  return 6 * weights + 6 * double(c.layers) * q * double(sequence);
}

} // namespace triax
