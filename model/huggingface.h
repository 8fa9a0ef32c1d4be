// A model's shape to and from the content of a Hugging Face `config.json`. Files are opened elsewhere.
#pragma once
#include "model/config.h"
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace triax {

struct HuggingFaceModel {
  ModelConfig model;
  std::vector<std::string> notes; ///< what was assumed or left aside, a sentence each: to be printed
};

/// Reads LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, GPT2LMHeadModel; RoPE as
/// `rope_theta`
/// + `rope_scaling` or nested `rope_parameters`; sliding windows as `sliding_window` with `use_sliding_window` and
/// `max_window_layers` or `layer_types`. `place` (the file's path) begins every error. Refused by name: other
/// architectures, RoPE types and activations, a full layer behind one with a window, quantised weights, a missing or
/// ill-typed key. A key that changes nothing for triax is left aside. The result passes `validate`.
HuggingFaceModel from_huggingface(const nlohmann::json& config, const std::string& place);

/// The `config.json` of a valid model, both spellings of RoPE and of the dtype ("float32", "bfloat16"). A llama with
/// qkv_bias is written as Qwen2, with qk_norm as Qwen3, with a window alone as Mistral, any other as Llama (Mistral
/// without a sliding window is the same network).
/// `end_of_text` below 0 leaves `bos_token_id` and `eos_token_id` null.
nlohmann::json to_huggingface(const ModelConfig& model, const std::string& dtype, int64_t end_of_text = -1);

} // namespace triax
