#include "model/sizes.h"
#include "kernels/check.h"
#include <algorithm>

namespace triax {

namespace {

struct Shape {
  int64_t width, layers, heads, kv_heads, mlp, vocabulary, context;
  int64_t head_width = width / heads;
};

ModelConfig with_shape(ModelConfig config, const Shape& shape) {
  config.width = shape.width;
  config.layers = shape.layers;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_width = shape.head_width;
  config.mlp = shape.mlp;
  config.vocabulary = shape.vocabulary;
  config.context = shape.context;
  return config;
}

ModelConfig gpt2(int64_t width, int64_t layers, int64_t heads) {
  return with_shape(family_defaults(Family::gpt2), {width, layers, heads, heads, 4 * width, 50257, 1024});
}

ModelConfig llama(double theta, const Shape& shape) {
  ModelConfig config = with_shape(family_defaults(Family::llama), shape);
  config.rope.theta = theta;
  return config;
}

ModelConfig tied(ModelConfig config) {
  config.tied = true;
  return config;
}

ModelConfig llama31(double factor, const Shape& shape) {
  ModelConfig config = llama(500000, shape);
  config.rope.kind = RopeKind::llama3;
  config.rope.factor = factor;
  config.rope.original_context = 8192;
  return config;
}

ModelConfig qwen25(double norm_eps, const Shape& shape) {
  ModelConfig config = llama(1000000, shape);
  config.norm_eps = norm_eps;
  config.qkv_bias = true;
  return config;
}

ModelConfig qwen3(int64_t width, int64_t layers, int64_t heads, int64_t mlp) {
  ModelConfig config = llama(1000000, {width, layers, heads, 8, mlp, 151936, 40960, 128});
  config.norm_eps = 1e-6;
  config.qk_norm = true;
  return config;
}

ModelConfig windowed(int64_t window, ModelConfig config) {
  config.window = window;
  return config;
}

// Shapes: the config.json files published with the weights; covenant-72b: arXiv 2603.08163 with the MLP width and the
// rows of its Gemma 3 vocabulary that the parameter count in its table 4 implies.
std::vector<NamedSize> make_sizes() {
  return {
      {"tiny", tied(llama(10000, {64, 2, 4, 2, 192, 512, 256}))},
      {"demo", tied(llama(10000, {256, 6, 4, 4, 704, 4096, 512}))},
      {"gpt2", gpt2(768, 12, 12)},
      {"gpt2-medium", gpt2(1024, 24, 16)},
      {"gpt2-large", gpt2(1280, 36, 20)},
      {"gpt2-xl", gpt2(1600, 48, 25)},
      {"llama2-7b", llama(10000, {4096, 32, 32, 32, 11008, 32000, 4096})},
      {"llama2-13b", llama(10000, {5120, 40, 40, 40, 13824, 32000, 4096})},
      {"llama2-70b", llama(10000, {8192, 80, 64, 8, 28672, 32000, 4096})},
      {"llama3-8b", llama(500000, {4096, 32, 32, 8, 14336, 128256, 8192})},
      {"llama3-70b", llama(500000, {8192, 80, 64, 8, 28672, 128256, 8192})},
      {"llama3-405b", llama31(8, {16384, 126, 128, 8, 53248, 128256, 131072})},
      {"mistral-7b-v0.1", windowed(4096, llama(10000, {4096, 32, 32, 8, 14336, 32000, 32768}))},
      {"mistral-7b", llama(1000000, {4096, 32, 32, 8, 14336, 32000, 32768})},
      {"qwen2.5-0.5b", tied(qwen25(1e-6, {896, 24, 14, 2, 4864, 151936, 32768}))},
      {"qwen2.5-1.5b", tied(qwen25(1e-6, {1536, 28, 12, 2, 8960, 151936, 131072}))},
      {"qwen2.5-3b", tied(qwen25(1e-6, {2048, 36, 16, 2, 11008, 151936, 32768}))},
      {"qwen2.5-7b", qwen25(1e-6, {3584, 28, 28, 4, 18944, 152064, 131072})},
      {"qwen2.5-14b", qwen25(1e-5, {5120, 48, 40, 8, 13824, 152064, 131072})},
      {"qwen2.5-32b", qwen25(1e-5, {5120, 64, 40, 8, 27648, 152064, 131072})},
      {"qwen2.5-72b", qwen25(1e-5, {8192, 80, 64, 8, 29568, 152064, 131072})},
      {"qwen3-0.6b", tied(qwen3(1024, 28, 16, 3072))},
      {"qwen3-1.7b", tied(qwen3(2048, 28, 16, 6144))},
      {"qwen3-4b", tied(qwen3(2560, 36, 32, 9728))},
      {"qwen3-8b", qwen3(4096, 36, 32, 12288)},
      {"qwen3-14b", qwen3(5120, 40, 40, 17408)},
      {"qwen3-32b", qwen3(5120, 64, 64, 25600)},
      {"covenant-72b", tied(llama(500000, {8192, 80, 64, 8, 28672, 262144, 2048}))},
  };
}

// Optimal string alignment: insertions, deletions, replacements, swaps of neighbours.
size_t edit_distance(const std::string& a, const std::string& b) {
  const size_t columns = b.size() + 1;
  std::vector<size_t> cost((a.size() + 1) * columns);
  const auto at = [&](size_t i, size_t j) -> size_t& { return cost[i * columns + j]; };
  for (size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (size_t i = 1; i <= a.size(); ++i)
    for (size_t j = 1; j <= b.size(); ++j) {
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, at(i - 1, j - 1) + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  return at(a.size(), b.size());
}

} // namespace

const std::vector<NamedSize>& named_sizes() {
  static const std::vector<NamedSize> sizes = make_sizes();
  return sizes;
}

const ModelConfig& named_size(const std::string& name) {
  std::vector<std::string> all;
  std::string list;
  for (const NamedSize& size : named_sizes()) {
    if (name == size.name) return size.config;
    all.push_back(size.name);
    list += (list.empty() ? "" : ", ") + all.back();
  }
  const std::string nearest = nearest_name(name, all);
  fail(concat("there is no model size \"", name, "\"",
              nearest.empty() ? "; known" : "; did you mean \"" + nearest + "\"? Known", " are ", list,
              ", and hf:FOLDER for a Hugging Face folder"));
}

std::string nearest_name(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string start = word.substr(0, 64); // an absurdly long word is near nothing: do not spend time on it
  size_t best = std::max<size_t>(2, start.size() / 3) + 1;
  std::string nearest;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(start, candidate);
    if (distance < best) best = distance, nearest = candidate;
  }
  return nearest;
}

} // namespace triax
