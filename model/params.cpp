#include "model/params.h"
#include <algorithm>
#include <cmath>

namespace triax {
namespace {

/// The rows of one architecture, in the order of the model.
class Rows {
public:
  explicit Rows(const ModelConfig& c) : c_(c), gpt2_(c.family == Family::gpt2) {}

  std::vector<Parameter> all() {
    matrix(Role::embedding, -1, "embedding.weight", c_.vocabulary, c_.width, 0, c_.init_std,
           {{gpt2_ ? "transformer.wte.weight" : "model.embed_tokens.weight"}});
    if (c_.position == Position::learned)
      matrix(Role::positions, -1, "positions.weight", c_.context, c_.width, -1, c_.init_std,
             {{"transformer.wpe.weight"}});
    for (int64_t l = 0; l < c_.layers; ++l) layer(l);
    norm(Role::final_norm, Role::final_norm_bias, -1, "final_norm", gpt2_ ? "transformer.ln_f" : "model.norm");
    if (!c_.tied) matrix(Role::head, -1, "head.weight", c_.vocabulary, c_.width, 0, c_.init_std, {{"lm_head.weight"}});
    return std::move(rows_);
  }

private:
  void layer(int64_t l) {
    const std::string own = concat("layers.", l, "."), hf = concat(gpt2_ ? "transformer.h." : "model.layers.", l, ".");
    const int64_t q = c_.heads * c_.head_width, kv = c_.kv_heads * c_.head_width;
    const float residual_std = float(c_.init_std / std::sqrt(2.0 * double(c_.layers))); // GPT-2's, section 2.3
    const bool gated = c_.activation == Activation::swiglu;

    norm(Role::norm1, Role::norm1_bias, l, own + "norm1", hf + (gpt2_ ? "ln_1" : "input_layernorm"));
    const auto qkv =
        gpt2_ ? stacked({{hf + "attn.c_attn", q + 2 * kv}})
              : stacked({{hf + "self_attn.q_proj", q}, {hf + "self_attn.k_proj", kv}, {hf + "self_attn.v_proj", kv}});
    linear(Role::qkv, Role::qkv_bias, l, own + "qkv", q + 2 * kv, c_.width, 0, c_.init_std, qkv,
           c_.bias || c_.qkv_bias);
    if (c_.qk_norm)
      vector(Role::qk_norm, l, own + "qk_norm.weight", 2 * c_.head_width, -1, 1.0f,
             {{hf + "self_attn.q_norm.weight", 0, c_.head_width},
              {hf + "self_attn.k_norm.weight", c_.head_width, c_.head_width}});
    linear(Role::out, Role::out_bias, l, own + "out", c_.width, q, 1, residual_std,
           stacked({{hf + (gpt2_ ? "attn.c_proj" : "self_attn.o_proj"), c_.width}}), c_.bias);

    norm(Role::norm2, Role::norm2_bias, l, own + "norm2", hf + (gpt2_ ? "ln_2" : "post_attention_layernorm"));
    const auto up = gated ? stacked({{hf + "mlp.gate_proj", c_.mlp}, {hf + "mlp.up_proj", c_.mlp}})
                          : stacked({{hf + "mlp.c_fc", c_.mlp}});
    linear(Role::up, Role::up_bias, l, own + "up", (gated ? 2 : 1) * c_.mlp, c_.width, 0, c_.init_std, up, c_.bias);
    linear(Role::down, Role::down_bias, l, own + "down", c_.width, c_.mlp, 1, residual_std,
           stacked({{hf + (gpt2_ ? "mlp.c_proj" : "mlp.down_proj"), c_.width}}), c_.bias);
  }

  /// Pieces one above the other: {name without suffix, rows}.
  static std::vector<Piece> stacked(const std::vector<std::pair<std::string, int64_t>>& parts) {
    std::vector<Piece> pieces;
    int64_t first = 0;
    for (const auto& [name, rows] : parts) {
      pieces.push_back({name, first, rows, false});
      first += rows;
    }
    return pieces;
  }

  void linear(Role role, Role bias_role, int64_t l, const std::string& name, int64_t rows, int64_t columns, int sharded,
              double std, const std::vector<Piece>& parts, bool bias) {
    std::vector<Piece> weights = parts, biases = parts;
    for (Piece& p : weights) p.name += ".weight", p.transposed = gpt2_;
    for (Piece& p : biases) p.name += ".bias";
    matrix(role, l, name + ".weight", rows, columns, sharded, std, weights);
    if (bias) vector(bias_role, l, name + ".bias", rows, sharded == 0 ? 0 : -1, 0.0f, biases);
  }

  void norm(Role role, Role bias_role, int64_t l, const std::string& name, const std::string& hf) {
    vector(role, l, name + ".weight", c_.width, -1, 1.0f, {{hf + ".weight"}});
    if (c_.norm == Norm::layer && c_.bias) vector(bias_role, l, name + ".bias", c_.width, -1, 0.0f, {{hf + ".bias"}});
  }

  void matrix(Role role, int64_t l, const std::string& name, int64_t rows, int64_t columns, int sharded, double std,
              std::vector<Piece> pieces) {
    if (pieces.size() == 1) pieces[0].rows = rows;
    rows_.push_back({role, l, name, rows, columns, false, sharded, float(std), 0.0f, true, 0, std::move(pieces)});
  }

  void vector(Role role, int64_t l, const std::string& name, int64_t rows, int sharded, float constant,
              std::vector<Piece> pieces) {
    if (pieces.size() == 1) pieces[0].rows = rows;
    rows_.push_back({role, l, name, rows, 1, true, sharded, 0.0f, constant, false, 0, std::move(pieces)});
  }

  const ModelConfig& c_;
  bool gpt2_;
  std::vector<Parameter> rows_;
};

} // namespace

ParamTable::ParamTable(const ModelConfig& config) : rows_(Rows(config).all()) {
  std::stable_partition(rows_.begin(), rows_.end(), [](const Parameter& p) { return p.decay; });
  for (Parameter& p : rows_) {
    p.offset = elements_;
    elements_ += (p.size() + kParamAlignment - 1) / kParamAlignment * kParamAlignment;
    if (p.decay) decayed_elements_ = elements_;
  }
}

const Parameter* ParamTable::find(Role role, int64_t layer) const {
  for (const Parameter& p : rows_)
    if (p.role == role && p.layer == layer) return &p;
  return nullptr;
}

int64_t ParamTable::count() const {
  int64_t sum = 0;
  for (const Parameter& p : rows_) sum += p.size();
  return sum;
}

Tensor view_of(const Tensor& flat, const Parameter* p) {
  if (!p || flat.empty()) return {};
  const Tensor part = flat.slice(0, p->offset, p->size());
  return p->vector ? part : part.view({p->rows, p->columns});
}

} // namespace triax
