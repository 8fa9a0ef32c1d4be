#include "model/config.h"
#include "kernels/check.h"
#include <cmath>
#include <initializer_list>
#include <iterator>

namespace triax {

std::span<const char* const> names(Family) {
  static constexpr const char* kNames[] = {"llama", "gpt2"};
  return kNames;
}

std::span<const char* const> names(Norm) {
  static constexpr const char* kNames[] = {"rms", "layer"};
  return kNames;
}

std::span<const char* const> names(Activation) {
  static constexpr const char* kNames[] = {"swiglu", "gelu_tanh", "gelu_erf"};
  return kNames;
}

std::span<const char* const> names(Position) {
  static constexpr const char* kNames[] = {"rope", "learned"};
  return kNames;
}

std::span<const char* const> names(RopeKind) {
  static constexpr const char* kNames[] = {"default", "linear", "llama3", "yarn"};
  return kNames;
}

namespace {

template <class E> const char* text(E value) { return names(value)[size_t(value)]; }

// Large enough for any model, small enough that every product in `parameters` stays below 2^63.
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxRows = 1 << 24; // vocabulary, context
constexpr int64_t kMaxLayers = 1 << 14;

void validate_sizes(const ModelConfig& c) {
  const struct {
    const char* name;
    int64_t value, most;
  } sizes[] = {{"width", c.width, kMaxWidth},           {"layers", c.layers, kMaxLayers},
               {"heads", c.heads, kMaxWidth},           {"kv_heads", c.kv_heads, kMaxWidth},
               {"head_width", c.head_width, kMaxWidth}, {"mlp", c.mlp, kMaxWidth},
               {"vocabulary", c.vocabulary, kMaxRows},  {"context", c.context, kMaxRows}};
  for (const auto& size : sizes) {
    DEMAND(size.value != 0, "model.", size.name, " is not given: set it, or start from a named size");
    DEMAND(size.value > 0 && size.value <= size.most, "model.", size.name, " is ", size.value, ", but must lie in 1..",
           size.most);
  }
}

void validate_heads(const ModelConfig& c) {
  DEMAND(c.kv_heads <= c.heads && c.heads % c.kv_heads == 0, "model.heads is ", c.heads, " and model.kv_heads is ",
         c.kv_heads, ", but every key/value head serves the same number of query heads: ", c.heads,
         " must be a multiple of ", c.kv_heads);
  DEMAND(c.heads <= kMaxWidth / c.head_width, "model.heads is ", c.heads, " and model.head_width is ", c.head_width,
         ": ", c.heads, " * ", c.head_width, " exceeds ", kMaxWidth);
  DEMAND(c.position != Position::rope || c.head_width % 2 == 0, "model.head_width is ", c.head_width,
         ", but rope turns pairs: it must be even (model.width ", c.width, ", model.heads ", c.heads, ")");
}

void validate_window(const ModelConfig& c) {
  DEMAND(c.window >= 0 && c.window <= kMaxRows, "model.window is ", c.window, ", but must lie in 0..", kMaxRows,
         " (0: no window)");
  if (c.window == 0) {
    DEMAND(c.full_layers == 0, "model.full_layers is ", c.full_layers,
           ", but without model.window every layer is full");
    return;
  }
  DEMAND(c.full_layers >= 0 && c.full_layers < c.layers, "model.full_layers is ", c.full_layers, ", but of ", c.layers,
         " layers at least one must have model.window ", c.window);
  DEMAND(c.full_layers == 0 || c.qkv_bias || c.qk_norm, "model.full_layers is ", c.full_layers,
         ", but only Qwen2 (model.qkv_bias) and Qwen3 (model.qk_norm) mix layers with and without a window");
}

// A family is what Hugging Face files of that architecture can hold.
void validate_family(const ModelConfig& c) {
  const char* family = text(c.family);
  if (c.family == Family::llama) {
    DEMAND(c.norm == Norm::rms, "model.norm is ", text(c.norm), ", but family ", family, " has rms");
    DEMAND(c.activation == Activation::swiglu, "model.activation is ", text(c.activation), ", but family ", family,
           " has swiglu");
    DEMAND(c.position == Position::rope, "model.position is ", text(c.position), ", but family ", family, " has rope");
    DEMAND(!c.bias, "model.bias is true, but family ", family, " has none (model.qkv_bias gives Qwen2's)");
    DEMAND(!c.qkv_bias || !c.qk_norm, "model.qkv_bias and model.qk_norm are both true, but Qwen2 has the one and Qwen3 "
                                      "the other");
    return;
  }
  DEMAND(c.norm == Norm::layer, "model.norm is ", text(c.norm), ", but family ", family, " has layer");
  DEMAND(c.activation != Activation::swiglu, "model.activation is swiglu, but family ", family,
         " has gelu_tanh or gelu_erf");
  DEMAND(c.position == Position::learned, "model.position is ", text(c.position), ", but family ", family,
         " has learned");
  DEMAND(c.bias && !c.qkv_bias, "model.bias is ", c.bias ? "true" : "false", " and model.qkv_bias is ",
         c.qkv_bias ? "true" : "false", ", but family ", family, " has bias true, which covers query, key and value");
  DEMAND(!c.qk_norm, "model.qk_norm is true, but family ", family, " has no norm of queries and keys");
  DEMAND(c.window == 0, "model.window is ", c.window, ", but family ", family, " has no sliding window");
  DEMAND(c.kv_heads == c.heads, "model.kv_heads is ", c.kv_heads, ", but family ", family,
         " has as many as query heads: ", c.heads);
  DEMAND(c.heads * c.head_width == c.width, "model.heads ", c.heads, " * model.head_width ", c.head_width, " = ",
         c.heads * c.head_width, ", but family ", family, " needs model.width, which is ", c.width);
}

void demand_positive(const char* name, double value) {
  DEMAND(value > 0 && std::isfinite(value), "model.", name, " is ", value, ", but must be above 0");
}

void validate_rope(const RopeConfig& rope) {
  demand_positive("rope.theta", rope.theta);
  if (rope.kind == RopeKind::standard) return;
  DEMAND(rope.factor >= 1 && std::isfinite(rope.factor), "model.rope.factor is ", rope.factor,
         ", but must be at least 1");
  if (rope.kind == RopeKind::linear) return;
  DEMAND(rope.original_context >= 1, "model.rope.original_context is ", rope.original_context, ", but kind ",
         text(rope.kind), " needs the context before the extension");
  if (rope.kind == RopeKind::llama3) {
    DEMAND(rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor, "model.rope.low_freq_factor is ",
           rope.low_freq_factor, " and model.rope.high_freq_factor is ", rope.high_freq_factor,
           ", but 0 < low < high is needed");
    return;
  }
  DEMAND(rope.theta > 1, "model.rope.theta is ", rope.theta, ", but kind yarn needs more than 1");
  DEMAND(rope.beta_slow > 0 && rope.beta_fast > rope.beta_slow, "model.rope.beta_slow is ", rope.beta_slow,
         " and model.rope.beta_fast is ", rope.beta_fast, ", but 0 < slow < fast is needed");
  demand_positive("rope.attention_factor", rope.attention_factor);
}

} // namespace

ModelConfig family_defaults(Family family) {
  ModelConfig config;
  if (family == Family::llama) return config;
  config.family = Family::gpt2;
  config.norm = Norm::layer;
  config.activation = Activation::gelu_tanh;
  config.position = Position::learned;
  config.tied = true;
  config.bias = true;
  return config;
}

int64_t window_of(const ModelConfig& config, int64_t layer) { return layer < config.full_layers ? 0 : config.window; }

double yarn_attention_factor(double factor) { return factor > 1 ? 0.1 * std::log(factor) + 1 : 1; }

void validate(const ModelConfig& config) {
  validate_sizes(config);
  validate_heads(config);
  validate_family(config);
  validate_window(config);
  if (config.position == Position::rope) validate_rope(config.rope);
  demand_positive("norm_eps", config.norm_eps);
  DEMAND(config.init_std >= 0 && std::isfinite(config.init_std), "model.init_std is ", config.init_std,
         ", but must be at least 0");
}

int64_t parameters(const ModelConfig& c) {
  const int64_t query = c.heads * c.head_width, key = c.kv_heads * c.head_width;
  const int64_t inner_matrices = c.activation == Activation::swiglu ? 2 : 1; // those that end in F
  int64_t attention = c.width * (query + 2 * key) + query * c.width;
  int64_t mlp = inner_matrices * c.width * c.mlp + c.mlp * c.width;
  int64_t norm = c.width;
  if (c.qkv_bias || c.bias) attention += query + 2 * key;
  if (c.qk_norm) attention += 2 * c.head_width;
  if (c.bias) {
    attention += c.width;
    mlp += inner_matrices * c.mlp + c.width;
    if (c.norm == Norm::layer) norm += c.width;
  }
  const int64_t tables = c.vocabulary * c.width * (c.tied ? 1 : 2);
  const int64_t positions = c.position == Position::learned ? c.context * c.width : 0;
  return tables + positions + c.layers * (attention + mlp + 2 * norm) + norm;
}

} // namespace triax
