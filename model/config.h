// The shape of a model as plain values. It names no tensor and no file: the parameter table and the Hugging Face
// mapping are derived from it. Letters in brackets are the notation of the design.
#pragma once
#include <cstdint>
#include <span>

namespace triax {

/// Decides how a model is spelled in Hugging Face files: `llama` (Llama, Mistral, Qwen2, Qwen3) or `gpt2`.
enum class Family { llama, gpt2 };
/// RMSNorm (a weight) or LayerNorm (a weight and, with `bias`, a bias).
enum class Norm { rms, layer };
/// `swiglu` has three matrices (gate, up, down), the two GELUs have two (up, down).
enum class Activation { swiglu, gelu_tanh, gelu_erf };
enum class Position { rope, learned };
enum class RopeKind { standard, linear, llama3, yarn };

/// The names used in files, in the order of the enumerators: names(Norm{})[int(norm)].
std::span<const char* const> names(Family);
std::span<const char* const> names(Norm);
std::span<const char* const> names(Activation);
std::span<const char* const> names(Position);
std::span<const char* const> names(RopeKind);

/// Rotary embedding, half-split as in Hugging Face's Llama. Pair i of D/2 turns by position * inv_freq[i]; unscaled
/// inv_freq[i] = theta^(-2i/D). The kinds change inv_freq as transformers' `modeling_rope_utils.py` does:
/// linear divides all of it by `factor` (arXiv 2306.15595), llama3 divides low frequencies and blends between
/// (`low_freq_factor`, `high_freq_factor`, `original_context`), yarn blends by `beta_fast`, `beta_slow` and
/// multiplies cosine and sine by `attention_factor` (arXiv 2309.00071).
struct RopeConfig {
  RopeKind kind = RopeKind::standard;
  double theta = 10000;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_context = 0; ///< context before the extension: needed by llama3 and yarn
  double beta_fast = 32;
  double beta_slow = 1;
  double attention_factor = 1; ///< yarn: by itself 0.1 ln(factor) + 1, see yarn_attention_factor
  bool truncate = true;        ///< yarn: the ends of the blend are rounded to whole pairs
  bool operator==(const RopeConfig&) const = default;
};

/// Zero means not given yet; `validate` refuses what is still zero.
struct ModelConfig {
  Family family = Family::llama;
  int64_t width = 0;      ///< [C]
  int64_t layers = 0;     ///< [L]
  int64_t heads = 0;      ///< [H] query heads
  int64_t kv_heads = 0;   ///< [G] key/value heads; query head h reads key/value head h / (H/G)
  int64_t head_width = 0; ///< [D]; H*D need not be C
  int64_t mlp = 0;        ///< [F]
  int64_t vocabulary = 0; ///< [V], unpadded
  int64_t context = 0;    ///< [T_max]
  Norm norm = Norm::rms;
  double norm_eps = 1e-5;
  Activation activation = Activation::swiglu;
  Position position = Position::rope;
  RopeConfig rope;       ///< not read when position is learned
  bool tied = false;     ///< the output head is the embedding
  bool qkv_bias = false; ///< biases on query, key and value alone (Qwen2)
  bool bias = false;     ///< biases on every linear layer but the head, and on the norms (GPT-2)
  bool qk_norm = false;  ///< RMSNorm over the D of each query and key head, before RoPE (Qwen3)
  /// Sliding window: how many positions, itself among them, a position attends to (Mistral); 0: no window.
  int64_t window = 0;
  int64_t full_layers = 0; ///< the first layers, which attend to all positions despite the window (Qwen2, Qwen3)
  double init_std = 0.02;
  bool operator==(const ModelConfig&) const = default;
};

/// The window of layer `layer`; 0 where it attends to all positions.
int64_t window_of(const ModelConfig& config, int64_t layer);

/// What the fields that a family fixes are for it (norm, activation, position, biases, tying); sizes are zero.
ModelConfig family_defaults(Family family);

/// 0.1 ln(factor) + 1 for factor > 1, else 1 (arXiv 2309.00071, equation 22).
double yarn_attention_factor(double factor);

/// Throws a sentence with all the numbers in it when no model of this shape exists or no Hugging Face file could hold
/// it: sizes below 1, H not a multiple of G, D odd under rope, norm and activation foreign to the family, ...
void validate(const ModelConfig& config);

/// Closed form of the number of parameters, a tied head counted once, no padding:
/// V C (1 or 2) + T_max C (learned) + L (attention + mlp + 2 norms) + norm. Equal to the sum over the parameter table.
int64_t parameters(const ModelConfig& config);

} // namespace triax
