#include "model/huggingface.h"
#include "kernels/check.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace triax {

using json = nlohmann::json;

namespace {

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

/// One object of the file. A key whose value is null counts as absent, as in transformers.
class Reader {
public:
  Reader(const json& object, std::string place, std::vector<std::string>& notes)
      : object_(object), place_(std::move(place)), notes_(notes) {}

  bool mentions(const char* key) const { return object_.contains(key); }
  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  int64_t integer(const char* key, std::optional<int64_t> absent = {}) const {
    const json* value = find(key, absent.has_value());
    if (!value) return *absent;
    const bool whole =
        value->is_number_integer() &&
        (!value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t(std::numeric_limits<int64_t>::max()));
    DEMAND(whole, place_, ": \"", key, "\" is ", shown(*value), ", but must be a whole number");
    return value->get<int64_t>();
  }

  double number(const char* key, std::optional<double> absent = {}) const {
    const json* value = find(key, absent.has_value());
    if (!value) return *absent;
    DEMAND(value->is_number() && std::isfinite(value->get<double>()), place_, ": \"", key, "\" is ", shown(*value),
           ", but must be a number");
    return value->get<double>();
  }

  /// With a note, because a wrong guess here spoils a model without an error.
  double number_or_note(const char* key, double absent) const {
    if (!has(key)) note(concat("\"", key, "\" is not given: ", absent, " taken, the default of transformers"));
    return number(key, absent);
  }

  bool boolean(const char* key, bool absent) const {
    const json* value = find(key, true);
    if (!value) return absent;
    DEMAND(value->is_boolean(), place_, ": \"", key, "\" is ", shown(*value), ", but must be true or false");
    return value->get<bool>();
  }

  std::string string(const char* key, std::optional<std::string> absent = {}) const {
    const json* value = find(key, absent.has_value());
    if (!value) return *absent;
    DEMAND(value->is_string(), place_, ": \"", key, "\" is ", shown(*value), ", but must be a string");
    return value->get<std::string>();
  }

  const json& object(const char* key) const {
    const json& value = *find(key, false);
    DEMAND(value.is_object(), place_, ": \"", key, "\" is ", shown(value), ", but must be an object");
    return value;
  }

  /// Refuses a flag that would change the network.
  void must_be(const char* key, bool wanted, const char* why) const {
    DEMAND(boolean(key, wanted) == wanted, place_, ": \"", key, "\" is ", wanted ? "false" : "true", ": ", why);
  }

  void note(const std::string& sentence) const { notes_.push_back(place_ + ": " + sentence); }
  const std::string& place() const { return place_; }
  const json& value(const char* key) const { return object_.at(key); }

private:
  const json* find(const char* key, bool optional) const {
    if (has(key)) return &object_.at(key);
    DEMAND(optional, place_, ": \"", key, "\" is not given: the model's shape cannot be read without it");
    return nullptr;
  }

  const json& object_;
  std::string place_;
  std::vector<std::string>& notes_;
};

RopeKind rope_kind(const Reader& rope) {
  const std::string type = rope.string("rope_type", rope.string("type", "default"));
  const auto kinds = names(RopeKind{});
  const auto found = std::find(kinds.begin(), kinds.end(), type);
  DEMAND(found != kinds.end(), rope.place(), ": RoPE type \"", type,
         "\" is not offered: known are default, linear, llama3, yarn");
  return RopeKind(found - kinds.begin());
}

double yarn_factor(const Reader& rope, double factor) {
  if (rope.has("attention_factor")) return rope.number("attention_factor");
  const double mscale = rope.number("mscale", 0), all = rope.number("mscale_all_dim", 0);
  const auto scaled = [&](double m) { return factor > 1 ? 0.1 * m * std::log(factor) + 1 : 1; };
  return mscale != 0 && all != 0 ? scaled(mscale) / scaled(all) : yarn_attention_factor(factor);
}

// What a kind reads is what transformers' modeling_rope_utils.py reads for it, with the same defaults.
void read_scaling(const Reader& rope, int64_t context, RopeConfig& out) {
  out.kind = rope_kind(rope);
  DEMAND(rope.number("partial_rotary_factor", 1) == 1, rope.place(),
         ": \"partial_rotary_factor\" is not 1: only the whole head is turned");
  if (out.kind == RopeKind::standard) return;
  if (out.kind == RopeKind::llama3) {
    out.low_freq_factor = rope.number("low_freq_factor");
    out.high_freq_factor = rope.number("high_freq_factor");
    out.original_context = rope.integer("original_max_position_embeddings");
  }
  if (out.kind != RopeKind::yarn) {
    out.factor = rope.number("factor");
    return;
  }
  out.original_context = rope.integer("original_max_position_embeddings", context);
  DEMAND(out.original_context > 0, rope.place(), ": \"original_max_position_embeddings\" is ", out.original_context,
         ", but must be above 0");
  out.factor = rope.number("factor", double(context) / double(out.original_context));
  out.attention_factor = yarn_factor(rope, out.factor);
  const double fast = rope.number("beta_fast", 0), slow = rope.number("beta_slow", 0);
  if (fast != 0) out.beta_fast = fast; // transformers takes 0 for absent
  if (slow != 0) out.beta_slow = slow;
  out.truncate = rope.boolean("truncate", true);
}

/// Transformers 4 writes "rope_theta" and "rope_scaling", 5 writes "rope_parameters" with the base inside; a file may
/// have both, which must then agree.
RopeConfig read_rope(const Reader& config, int64_t context, std::vector<std::string>& notes) {
  std::optional<RopeConfig> flat, nested;
  if (config.has("rope_parameters")) {
    const Reader rope(config.object("rope_parameters"), config.place() + ": rope_parameters", notes);
    for (const auto& [key, value] : config.object("rope_parameters").items())
      DEMAND(!value.is_object(), rope.place(), ": \"", key, "\" is an object: RoPE by layer type is not offered");
    nested.emplace();
    read_scaling(rope, context, *nested);
    nested->theta = rope.has("rope_theta") || config.has("rope_theta")
                        ? rope.number("rope_theta", config.number("rope_theta", 0))
                        : rope.number_or_note("rope_theta", 10000);
  }
  if (config.has("rope_scaling") || !nested) {
    flat.emplace();
    if (config.has("rope_scaling"))
      read_scaling(Reader(config.object("rope_scaling"), config.place() + ": rope_scaling", notes), context, *flat);
    flat->theta = nested && !config.has("rope_theta") ? nested->theta : config.number_or_note("rope_theta", 10000);
  }
  if (nested && config.has("rope_theta"))
    DEMAND(nested->theta == config.number("rope_theta"), config.place(), ": \"rope_theta\" is ",
           config.number("rope_theta"), ", but in \"rope_parameters\" it is ", nested->theta, ": remove one of them");
  DEMAND(!flat || !nested || *flat == *nested, config.place(),
         ": \"rope_scaling\" and \"rope_parameters\" disagree: remove one of them");
  return nested ? *nested : *flat;
}

/// How many layers attend to all positions before the first that slides; all where none does.
int64_t leading_full_layers(const Reader& config, int64_t layers) {
  const json& types = config.value("layer_types");
  DEMAND(types.is_array() && int64_t(types.size()) == layers, config.place(), ": \"layer_types\" is ", shown(types),
         ", but must name a type for each of ", layers, " layers");
  int64_t full = 0;
  for (int64_t l = 0; l < layers; ++l) {
    const json& type = types[size_t(l)];
    DEMAND(type == "full_attention" || type == "sliding_attention", config.place(), ": \"layer_types\" has ",
           shown(type), ": known are full_attention, sliding_attention");
    if (type == "sliding_attention") continue;
    DEMAND(full == l, config.place(), ": \"layer_types\" has full_attention at layer ", l,
           ", behind sliding_attention: only the first layers can be full");
    full = l + 1;
  }
  return full;
}

/// Mistral slides in every layer, Qwen from layer `max_window_layers` on and only with `use_sliding_window`; newer
/// files of Qwen name each layer's type, which is then what counts. The defaults are those of transformers.
void read_windows(const Reader& config, const std::string& architecture, ModelConfig& model) {
  const bool mistral = architecture == "MistralForCausalLM", llama = architecture == "LlamaForCausalLM";
  const bool slides = mistral || (!llama && config.boolean("use_sliding_window", false));
  DEMAND(!llama || !config.has("sliding_window"), config.place(),
         ": \"sliding_window\" is given, but LlamaForCausalLM has none: remove it, or name MistralForCausalLM");
  int64_t window = 0;
  if (slides && (config.has("sliding_window") || !config.mentions("sliding_window"))) {
    if (mistral && !config.has("sliding_window"))
      config.note("\"sliding_window\" is not given: 4096 taken, the default of transformers");
    window = config.integer("sliding_window", 4096);
    DEMAND(window > 0, config.place(), ": \"sliding_window\" is ", window, ", but must be above 0, or null for none");
  }
  int64_t full = window == 0 ? model.layers : mistral ? 0 : config.integer("max_window_layers", 28);
  DEMAND(full >= 0, config.place(), ": \"max_window_layers\" is ", full, ", but must not be below 0");
  if (config.has("layer_types")) {
    const int64_t typed = leading_full_layers(config, model.layers);
    DEMAND(window > 0 || typed == model.layers, config.place(), ": \"layer_types\" has sliding_attention, but no ",
           llama || mistral ? "\"sliding_window\" is given" : "window is in use: see \"use_sliding_window\"");
    DEMAND(!mistral || typed == full, config.place(), ": \"layer_types\" has full_attention, but MistralForCausalLM ",
           "has its window in every layer");
    full = typed;
  }
  if (full >= model.layers) return;
  model.window = window;
  model.full_layers = full;
}

ModelConfig read_llama(const Reader& config, const std::string& architecture, std::vector<std::string>& notes) {
  ModelConfig model = family_defaults(Family::llama);
  model.width = config.integer("hidden_size");
  model.layers = config.integer("num_hidden_layers");
  model.heads = config.integer("num_attention_heads");
  DEMAND(model.heads > 0, config.place(), ": \"num_attention_heads\" is ", model.heads, ", but must be above 0");
  const bool qwen3 = architecture == "Qwen3ForCausalLM";
  model.kv_heads = config.integer("num_key_value_heads", model.heads);
  DEMAND(config.has("head_dim") || qwen3 || model.width % model.heads == 0, config.place(), ": \"hidden_size\" ",
         model.width, " is no multiple of \"num_attention_heads\" ", model.heads, ", and \"head_dim\" is not given");
  model.head_width = config.integer("head_dim", qwen3 ? 128 : model.width / model.heads);
  model.mlp = config.integer("intermediate_size");
  model.vocabulary = config.integer("vocab_size");
  model.context = config.integer("max_position_embeddings");
  model.norm_eps = config.number_or_note("rms_norm_eps", 1e-6);
  model.init_std = config.number("initializer_range", 0.02);
  model.tied = config.boolean("tie_word_embeddings", false);
  model.qkv_bias = architecture == "Qwen2ForCausalLM"; // the file has no flag for them
  model.qk_norm = qwen3;
  const std::string activation = config.string("hidden_act", "silu");
  DEMAND(activation == "silu" || activation == "swish", config.place(), ": \"hidden_act\" is \"", activation,
         "\", but only silu is offered for ", architecture);
  config.must_be("attention_bias", false, "biases on all four attention matrices are not offered");
  config.must_be("mlp_bias", false, "biases in the MLP are not offered");
  DEMAND(config.number("partial_rotary_factor", 1) == 1, config.place(),
         ": \"partial_rotary_factor\" is not 1: only the whole head is turned");
  read_windows(config, architecture, model);
  model.rope = read_rope(config, model.context, notes);
  return model;
}

ModelConfig read_gpt2(const Reader& config) {
  ModelConfig model = family_defaults(Family::gpt2);
  model.width = config.integer("n_embd");
  model.layers = config.integer("n_layer");
  model.heads = model.kv_heads = config.integer("n_head");
  DEMAND(model.heads > 0 && model.width % model.heads == 0, config.place(), ": \"n_embd\" ", model.width,
         " is no multiple of \"n_head\" ", model.heads);
  model.head_width = model.width / model.heads;
  DEMAND(model.width < (int64_t(1) << 60), config.place(), ": \"n_embd\" is ", model.width, ", which no model has");
  model.mlp = config.integer("n_inner", 4 * model.width);
  model.vocabulary = config.integer("vocab_size");
  model.context = config.has("n_positions") ? config.integer("n_positions") : config.integer("n_ctx");
  model.norm_eps = config.number("layer_norm_epsilon", 1e-5);
  model.init_std = config.number("initializer_range", 0.02);
  model.tied = config.boolean("tie_word_embeddings", true);
  const std::string activation = config.string("activation_function", "gelu_new");
  DEMAND(activation == "gelu_new" || activation == "gelu_pytorch_tanh" || activation == "gelu", config.place(),
         ": \"activation_function\" is \"", activation, "\": known are gelu_new, gelu_pytorch_tanh, gelu");
  model.activation = activation == "gelu" ? Activation::gelu_erf : Activation::gelu_tanh;
  config.must_be("scale_attn_weights", true, "attention without its scale is not offered");
  config.must_be("scale_attn_by_inverse_layer_idx", false, "a scale by layer is not offered");
  config.must_be("add_cross_attention", false, "cross attention is not offered");
  return model;
}

void note_dropout(const Reader& config) {
  for (const char* key : {"attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"})
    if (const double rate = config.number(key, 0); rate != 0)
      config.note(concat("\"", key, "\" is ", rate, ": left aside, triax trains without dropout"));
}

std::string read_architecture(const json& config, const Reader& reader) {
  static const std::pair<const char*, const char*> kByType[] = {{"llama", "LlamaForCausalLM"},
                                                                {"mistral", "MistralForCausalLM"},
                                                                {"qwen2", "Qwen2ForCausalLM"},
                                                                {"qwen3", "Qwen3ForCausalLM"},
                                                                {"gpt2", "GPT2LMHeadModel"}};
  const char* const known = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, GPT2LMHeadModel";
  std::string name;
  if (reader.has("architectures")) {
    const json& list = config.at("architectures");
    DEMAND(list.is_array() && list.size() == 1 && list[0].is_string(), reader.place(), ": \"architectures\" is ",
           shown(list), ", but must be a list of one name");
    name = list[0].get<std::string>();
  } else { // written by hand, or by a class without a head
    const std::string type = reader.string("model_type");
    for (const auto& [model_type, architecture] : kByType)
      if (type == model_type) name = architecture;
    DEMAND(!name.empty(), reader.place(), ": \"model_type\" is \"", type, "\": offered are ", known);
  }
  const bool offered = std::any_of(std::begin(kByType), std::end(kByType), [&](auto& p) { return name == p.second; });
  DEMAND(offered, reader.place(), ": architecture \"", name, "\" is not offered: known are ", known);
  return name;
}

} // namespace

HuggingFaceModel from_huggingface(const json& config, const std::string& place) {
  DEMAND(config.is_object(), place, ": holds ", config.type_name(), ", but a model's config.json is an object");
  HuggingFaceModel result;
  const Reader reader(config, place, result.notes);
  const std::string architecture = read_architecture(config, reader);
  DEMAND(!reader.has("quantization_config"), place,
         ": \"quantization_config\" is given: quantised weights are not read");
  result.model = architecture == "GPT2LMHeadModel" ? read_gpt2(reader) : read_llama(reader, architecture, result.notes);
  note_dropout(reader);
  try {
    validate(result.model);
  } catch (const Error& error) {
    fail(place + ": " + error.what());
  }
  return result;
}

} // namespace triax
