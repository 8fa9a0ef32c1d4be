#include "model/huggingface.h"
#include <nlohmann/json.hpp>

namespace triax {

using json = nlohmann::json;

namespace {

/// The class of transformers that computes the model, and its type.
std::pair<const char*, const char*> architecture_of(const ModelConfig& model) {
  if (model.family == Family::gpt2) return {"GPT2LMHeadModel", "gpt2"};
  if (model.qk_norm) return {"Qwen3ForCausalLM", "qwen3"};
  if (model.qkv_bias) return {"Qwen2ForCausalLM", "qwen2"};
  if (model.window > 0) return {"MistralForCausalLM", "mistral"};
  return {"LlamaForCausalLM", "llama"};
}

json rope_json(const RopeConfig& rope) {
  json out = {{"rope_type", names(rope.kind)[size_t(rope.kind)]}};
  if (rope.kind == RopeKind::standard) return out;
  out["factor"] = rope.factor;
  if (rope.kind == RopeKind::linear) return out;
  out["original_max_position_embeddings"] = rope.original_context;
  if (rope.kind == RopeKind::llama3) {
    out["low_freq_factor"] = rope.low_freq_factor;
    out["high_freq_factor"] = rope.high_freq_factor;
  } else {
    out["beta_fast"] = rope.beta_fast;
    out["beta_slow"] = rope.beta_slow;
    out["attention_factor"] = rope.attention_factor;
    out["truncate"] = rope.truncate;
  }
  return out;
}

void write_qwen_windows(const ModelConfig& model, json& out) {
  const bool slides = model.window > 0;
  out["use_sliding_window"] = slides;
  out["sliding_window"] = slides ? json(model.window) : json();
  out["max_window_layers"] = slides ? model.full_layers : model.layers;
  out["layer_types"] = json::array();
  for (int64_t l = 0; l < model.layers; ++l)
    out["layer_types"].push_back(window_of(model, l) > 0 ? "sliding_attention" : "full_attention");
}

void write_llama(const ModelConfig& model, json& out) {
  out["hidden_size"] = model.width;
  out["num_hidden_layers"] = model.layers;
  out["num_attention_heads"] = model.heads;
  out["num_key_value_heads"] = model.kv_heads;
  out["head_dim"] = model.head_width;
  out["intermediate_size"] = model.mlp;
  out["max_position_embeddings"] = model.context;
  out["rms_norm_eps"] = model.norm_eps;
  out["hidden_act"] = "silu";
  out["attention_dropout"] = 0.0;
  const std::string type = out["model_type"];
  if (type == "llama" || type == "qwen3") out["attention_bias"] = false;
  if (type == "llama") out["mlp_bias"] = false;
  if (type == "mistral") out["sliding_window"] = model.window;
  if (type == "qwen2" || type == "qwen3") write_qwen_windows(model, out);
  out["rope_theta"] = model.rope.theta;
  const json rope = rope_json(model.rope);
  out["rope_scaling"] = model.rope.kind == RopeKind::standard ? json() : rope;
  out["rope_parameters"] = rope;
  out["rope_parameters"]["rope_theta"] = model.rope.theta;
}

void write_gpt2(const ModelConfig& model, json& out) {
  out["n_embd"] = model.width;
  out["n_layer"] = model.layers;
  out["n_head"] = model.heads;
  out["n_inner"] = model.mlp;
  out["n_positions"] = out["n_ctx"] = model.context;
  out["layer_norm_epsilon"] = model.norm_eps;
  out["activation_function"] = model.activation == Activation::gelu_erf ? "gelu" : "gelu_new";
  out["attn_pdrop"] = out["embd_pdrop"] = out["resid_pdrop"] = 0.0;
}

} // namespace

json to_huggingface(const ModelConfig& model, const std::string& dtype, int64_t end_of_text) {
  validate(model);
  json out;
  const auto [architecture, type] = architecture_of(model);
  out["architectures"] = {architecture};
  out["model_type"] = type;
  if (model.family == Family::llama)
    write_llama(model, out);
  else
    write_gpt2(model, out);
  out["vocab_size"] = model.vocabulary;
  out["initializer_range"] = model.init_std;
  out["tie_word_embeddings"] = model.tied;
  out["torch_dtype"] = out["dtype"] = dtype;
  out["bos_token_id"] = out["eos_token_id"] = end_of_text < 0 ? json() : json(end_of_text);
  out["use_cache"] = true;
  return out;
}

} // namespace triax
