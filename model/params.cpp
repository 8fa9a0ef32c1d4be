#include "model/params.h"
#include <algorithm>
#include <cmath>

namespace triax {
namespace {

/// The rows of one architecture, in the order of the model, as one rank of `tensor` holds them.
class Rows {
public:
  Rows(const ModelConfig& c, const Cut& cut) : c_(c), cut_(cut), gpt2_(c.family == Family::gpt2) {}

  std::vector<Parameter> all() {
    matrix(Role::embedding, -1, "embedding.weight", c_.width, c_.init_std,
           {part(gpt2_ ? "transformer.wte.weight" : "model.embed_tokens.weight", c_.vocabulary, Parted::rows)});
    if (c_.position == Position::learned)
      matrix(Role::positions, -1, "positions.weight", c_.width, c_.init_std,
             {part("transformer.wpe.weight", c_.context)});
    for (int64_t l = 0; l < c_.layers; ++l) layer(l);
    norm(Role::final_norm, Role::final_norm_bias, -1, "final_norm", gpt2_ ? "transformer.ln_f" : "model.norm");
    if (!c_.tied) {
      matrix(Role::head, -1, "head.weight", c_.width, c_.init_std,
             {part("lm_head.weight", c_.vocabulary, Parted::rows)});
    } else if (cut_.head_copy) {
      Parameter copy = rows_[0];
      copy.role = Role::head;
      copy.name = "head.weight";
      copy.is_copy = true;
      rows_.push_back(std::move(copy));
    }
    uint32_t number = 0;
    for (const bool decay : {true, false})
      for (Parameter& p : rows_)
        if (p.decay == decay) p.number = p.is_copy ? rows_[0].number : number++;
    return std::move(rows_);
  }

private:
  void layer(int64_t l) {
    const std::string own = concat("layers.", l, "."), hf = concat(gpt2_ ? "transformer.h." : "model.layers.", l, ".");
    const int64_t q = c_.heads * c_.head_width, kv = c_.kv_heads * c_.head_width;
    const float residual_std = float(c_.init_std / std::sqrt(2.0 * double(c_.layers))); // GPT-2's, section 2.3
    const bool gated = c_.activation == Activation::swiglu;

    norm(Role::norm1, Role::norm1_bias, l, own + "norm1", hf + (gpt2_ ? "ln_1" : "input_layernorm"));
    // GPT-2's files hold queries, keys and values in one tensor, which a tensor-parallel rank holds three parts of.
    const auto fused = [&](const char* name) { return gpt2_ ? hf + "attn.c_attn" : hf + "self_attn." + name; };
    linear(Role::qkv, Role::qkv_bias, l, own + "qkv", c_.width, c_.init_std,
           {part(fused("q_proj"), q, Parted::rows), part(fused("k_proj"), kv, Parted::rows, cut_.copies),
            part(fused("v_proj"), kv, Parted::rows, cut_.copies)},
           c_.bias || c_.qkv_bias);
    if (c_.qk_norm)
      vector(
          Role::qk_norm, l, own + "qk_norm.weight", 1.0f,
          {part(hf + "self_attn.q_norm.weight", c_.head_width), part(hf + "self_attn.k_norm.weight", c_.head_width)});
    linear(Role::out, Role::out_bias, l, own + "out", q, residual_std,
           {part(hf + (gpt2_ ? "attn.c_proj" : "self_attn.o_proj"), c_.width, Parted::columns)}, c_.bias);

    norm(Role::norm2, Role::norm2_bias, l, own + "norm2", hf + (gpt2_ ? "ln_2" : "post_attention_layernorm"));
    const std::vector<Piece> up = gated ? std::vector<Piece>{part(hf + "mlp.gate_proj", c_.mlp, Parted::rows),
                                                             part(hf + "mlp.up_proj", c_.mlp, Parted::rows)}
                                        : std::vector<Piece>{part(hf + "mlp.c_fc", c_.mlp, Parted::rows)};
    linear(Role::up, Role::up_bias, l, own + "up", c_.width, c_.init_std, up, c_.bias);
    linear(Role::down, Role::down_bias, l, own + "down", c_.mlp, residual_std,
           {part(hf + (gpt2_ ? "mlp.c_proj" : "mlp.down_proj"), c_.width, Parted::columns)}, c_.bias);
  }

  Piece part(const std::string& name, int64_t rows, Parted parted = Parted::whole, int64_t copies = 1) const {
    Piece piece;
    piece.name = name;
    piece.parted = parted;
    piece.copies = copies;
    piece.all_rows = rows;
    const int64_t parts = cut_.tensor / copies;
    piece.rows = parted == Parted::rows ? (rows + parts - 1) / parts : rows;
    return piece;
  }

  void linear(Role role, Role bias_role, int64_t l, const std::string& name, int64_t columns, double std,
              const std::vector<Piece>& parts, bool bias) {
    std::vector<Piece> weights = parts, biases = parts;
    for (Piece& p : weights) p.name += ".weight", p.transposed = gpt2_;
    for (Piece& p : biases) {
      p.name += ".bias";
      if (p.parted == Parted::columns) p.parted = Parted::whole;
    }
    matrix(role, l, name + ".weight", columns, std, weights);
    if (bias) vector(bias_role, l, name + ".bias", 0.0f, biases);
  }

  void norm(Role role, Role bias_role, int64_t l, const std::string& name, const std::string& hf) {
    vector(role, l, name + ".weight", 1.0f, {part(hf + ".weight", c_.width)});
    if (c_.norm == Norm::layer && c_.bias) vector(bias_role, l, name + ".bias", 0.0f, {part(hf + ".bias", c_.width)});
  }

  void matrix(Role role, int64_t l, const std::string& name, int64_t columns, double std, std::vector<Piece> pieces) {
    Parameter p{role, l, name, 0, columns, false, float(std), 0.0f, true, false, 0, 0, -1, std::move(pieces)};
    if (p.pieces[0].parted == Parted::columns) p.columns /= cut_.tensor;
    add(std::move(p), columns);
  }

  void vector(Role role, int64_t l, const std::string& name, float constant, std::vector<Piece> pieces) {
    add({role, l, name, 0, 1, true, 0.0f, constant, false, false, 0, 0, -1, std::move(pieces)}, 1);
  }

  void add(Parameter p, int64_t all_columns) {
    int64_t above = 0;
    for (Piece& piece : p.pieces) {
      piece.first = p.rows;
      piece.all_columns = all_columns;
      piece.first_of_all = above;
      p.rows += piece.rows;
      above += piece.all_rows;
    }
    rows_.push_back(std::move(p));
  }

  const ModelConfig& c_;
  const Cut& cut_;
  bool gpt2_;
  std::vector<Parameter> rows_;
};

int64_t rounded_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

int64_t gcd_of(int64_t a, int64_t b) { return b == 0 ? a : gcd_of(b, a % b); }

} // namespace

int64_t Piece::rows_at(int rank) const {
  return parted == Parted::rows ? std::clamp<int64_t>(all_rows - first_row_at(rank), 0, rows) : rows;
}

int kv_copies(const ModelConfig& c, int tensor) {
  DEMAND(c.heads % tensor == 0, "mesh.tp is ", tensor, ", but must divide model.heads, which is ", c.heads);
  DEMAND(c.mlp % tensor == 0, "mesh.tp is ", tensor, ", but must divide model.mlp, which is ", c.mlp);
  const int64_t common = gcd_of(c.kv_heads, tensor);
  DEMAND(common == c.kv_heads || common == tensor, "mesh.tp is ", tensor, ", and model.kv_heads ", c.kv_heads,
         ": one must be a multiple of the other, so that no rank needs a part of a head");
  return int(tensor / common);
}

ParamTable::ParamTable(const ModelConfig& config, Cut cut) : cut_(std::move(cut)), rows_(Rows(config, cut_).all()) {
  index_.assign(size_t(config.layers + 1) * kRoles, -1);
  for (size_t i = 0; i < rows_.size(); ++i)
    index_[size_t(rows_[i].layer + 1) * kRoles + size_t(rows_[i].role)] = int32_t(i);
  const auto any_chunk = [&](const auto& has) {
    return cut_.chunks.empty() || std::any_of(cut_.chunks.begin(), cut_.chunks.end(), has);
  };
  const bool embedding = any_chunk([](const LayerRange& r) { return r.embedding; });
  const bool head = any_chunk([](const LayerRange& r) { return r.head; });
  add_unit("embedding", {Role::embedding}, {}, -1, embedding);
  add_unit("positions", {}, {Role::positions}, -1, embedding);
  const bool copies = cut_.copies > 1; // then a part of the queries', keys' and values' biases is held by some ranks
  for (int64_t l = 0; l < config.layers; ++l) {
    const bool here = any_chunk([l](const LayerRange& r) { return l >= r.first && l < r.first + r.count; });
    std::vector<Role> parted{Role::out, Role::up, Role::down, Role::qkv};
    if (!copies) parted.insert(parted.end(), {Role::up_bias, Role::qkv_bias});
    add_unit(
        concat("layer ", l), parted,
        {Role::norm1, Role::norm1_bias, Role::qk_norm, Role::out_bias, Role::norm2, Role::norm2_bias, Role::down_bias},
        l, here);
    if (copies) add_unit(concat("biases of layer ", l), {Role::up_bias, Role::qkv_bias}, {}, l, here);
  }
  add_unit("final norm", {}, {Role::final_norm, Role::final_norm_bias}, -1, head);
  add_unit("head", {Role::head}, {}, -1, head);
}

void ParamTable::add_unit(std::string name, const std::vector<Role>& parted, const std::vector<Role>& whole,
                          int64_t layer, bool is_here) {
  Unit unit;
  unit.name = std::move(name);
  unit.number = int32_t(all_units_);
  unit.begin = elements_;
  unit.canonical = canonical_;
  int64_t at = 0, copied_from = -1;
  const auto place = [&](const std::vector<Role>& roles) {
    for (Role role : roles) {
      const int32_t row = index_[size_t(layer + 1) * kRoles + size_t(role)];
      if (row < 0) continue;
      Parameter& p = rows_[size_t(row)];
      unit.is_copy = p.is_copy;
      unit.partial = role != Role::positions;
      if (cut_.copies > 1 && (role == Role::qkv || role == Role::qkv_bias))
        copied_from = at + p.pieces[1].first * p.columns; // keys and values
      if (is_here) p.offset = elements_ + at, p.unit = int32_t(units_.size());
      at = rounded_up(at + p.size(), kParamAlignment);
      if (p.decay) unit.decay_to = at;
    }
  };
  place(parted);
  unit.whole_from = at;
  place(whole);
  if (at == 0) return; // the model has none of it
  unit.length = rounded_up(at, kShardBlock);
  unit.elements = rounded_up(unit.length, kShardBlock * cut_.shards);
  if (cut_.tensor == 1 || at == unit.whole_from) unit.whole_from = unit.length;
  unit.copied_from = copied_from < 0 ? unit.whole_from : copied_from;
  if (unit.is_copy) { // random bits are the embedding's, which comes first; its norm counts once
    unit.canonical = 0;
  } else {
    canonical_ += unit.length;
    ++all_units_;
  }
  if (!is_here) return;
  elements_ += unit.elements;
  units_.push_back(std::move(unit));
}

int ParamTable::unit_of(Role role, int64_t layer) const {
  const Parameter* p = find(role, layer);
  return p ? p->unit : -1;
}

const Parameter* ParamTable::find(Role role, int64_t layer) const {
  const int32_t at = index_[size_t(layer + 1) * kRoles + size_t(role)];
  return at < 0 ? nullptr : &rows_[size_t(at)];
}

int64_t ParamTable::count() const {
  int64_t sum = 0;
  for (const Parameter& p : rows_)
    for (const Piece& piece : p.pieces) sum += p.is_copy ? 0 : piece.all_rows * piece.all_columns;
  return sum;
}

Tensor view_of(const Tensor& unit, const ParamTable& table, const Parameter* p) {
  if (!p || unit.empty()) return {};
  const Tensor part = unit.slice(0, p->offset - table.units()[size_t(p->unit)].begin, p->size());
  return p->vector ? part : part.view({p->rows, p->columns});
}

Tensor unit_of(const Tensor& flat, const Unit& unit) {
  return flat.empty() ? flat : flat.slice(0, unit.begin, unit.elements);
}

} // namespace triax
