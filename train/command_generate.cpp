// triax generate: text from a model.
#include "data/tokenizer.h"
#include "train/commands.h"
#include "train/inference.h"
#include "train/machine.h"
#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>
#include <random>

namespace triax {
namespace {

struct Options {
  std::string model, prompt, tokenizer;
  int64_t tokens = 100, top_k = 50, threads = 0;
  double temperature = 0.8;
  uint64_t seed = 1;
};

/// The ids that the tokenizer has a token for: a model's vocabulary may be padded beyond them.
std::vector<int32_t> ids_with_tokens(const Tokenizer& tokenizer, int64_t vocabulary) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < std::min(tokenizer.vocab_size(), vocabulary); ++id)
    if (!tokenizer.token(id).empty()) ids.push_back(id);
  return ids;
}

/// Special tokens stand for no text: the first one drawn ends it.
bool ends_text(const Tokenizer& tokenizer, int32_t id) {
  return id == tokenizer.end_of_text() || tokenizer.token_bytes(id) == 0;
}

/// One of `order` drawn from the `top_k` likeliest at `temperature`; the likeliest itself at temperature 0.
int32_t sample(const std::vector<float>& logits, std::vector<int32_t> order, const Options& o,
               std::mt19937_64& random) {
  for (int32_t id : order)
    DEMAND(std::isfinite(logits[id]), "the model's logits are not finite: its weights are damaged or have diverged");
  const size_t k = o.top_k > 0 ? std::min(size_t(o.top_k), order.size()) : order.size();
  std::partial_sort(order.begin(), order.begin() + int64_t(k), order.end(),
                    [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  if (o.temperature == 0) return order[0];
  std::vector<double> weights;
  for (size_t i = 0; i < k; ++i)
    weights.push_back(std::exp(double(logits[order[i]] - logits[order[0]]) / o.temperature));
  double at = std::accumulate(weights.begin(), weights.end(), 0.0) * double(random() >> 11) * 0x1p-53;
  for (size_t i = 0; i < k; ++i)
    if ((at -= weights[i]) < 0) return order[i];
  return order[k - 1];
}

void run_generate(const Options& o) {
  const std::string folder = model_folder(o.model);
  if (!o.tokenizer.empty()) demand_exists("--tokenizer", o.tokenizer);
  const Tokenizer tokenizer = Tokenizer::load(o.tokenizer.empty() ? folder : o.tokenizer);
  std::vector<int32_t> ids = tokenizer.encode(o.prompt, true);
  if (ids.empty()) {
    DEMAND(tokenizer.end_of_text(),
           "the prompt is empty and the tokenizer has no end-of-text token to start from; give --prompt");
    ids.push_back(*tokenizer.end_of_text());
  }
  Inference model(folder, best_target(), choose_threads(o.threads, 1), 1, 0);
  DEMAND(*std::max_element(ids.begin(), ids.end()) < model.model().vocabulary,
         "the tokenizer knows more tokens than the model's vocabulary of ", model.model().vocabulary,
         "; give the model's own with --tokenizer");
  const std::vector<int32_t> known = ids_with_tokens(tokenizer, model.model().vocabulary);
  std::mt19937_64 random(o.seed);
  std::cout << o.prompt << std::flush;
  for (int64_t n = 0; n < o.tokens; ++n) {
    ids.push_back(sample(model.next(ids), known, o, random));
    if (ends_text(tokenizer, ids.back())) break;
    std::cout << tokenizer.decode({&ids.back(), 1}) << std::flush;
  }
  std::cout << "\n";
}

} // namespace

void add_generate(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("generate", "text from a model");
  command->add_option("model", o->model, "a run's folder, a checkpoint, or a Hugging Face folder")->required();
  command->add_option("--prompt", o->prompt, "text to go on from");
  command->add_option("--tokens", o->tokens, "most tokens to write")
      ->capture_default_str()
      ->check(whole_number(0, 1'000'000'000));
  command->add_option("--temperature", o->temperature, "0: always the likeliest token")
      ->capture_default_str()
      ->check(real_number(0, 1000));
  command->add_option("--top-k", o->top_k, "draw from so many likeliest tokens; 0: from all")
      ->capture_default_str()
      ->check(whole_number(0, INT32_MAX));
  command->add_option("--seed", o->seed, "of the drawing")->capture_default_str()->check(whole_number(0, INT64_MAX));
  command->add_option("--tokenizer", o->tokenizer, "tokenizer.json or its folder; without it the model's own");
  add_threads(command, o->threads);
  command->callback([o] { run_generate(*o); });
}

} // namespace triax
