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

/// A token drawn from the `top_k` likeliest at `temperature`; the likeliest itself at temperature 0.
int32_t sample(const std::vector<float>& logits, const Options& o, std::mt19937_64& random) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
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
  std::mt19937_64 random(o.seed);
  std::cout << o.prompt << std::flush;
  for (int64_t n = 0; n < o.tokens; ++n) {
    ids.push_back(sample(model.next(ids), o, random));
    if (ids.back() == tokenizer.end_of_text()) break;
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
      ->check(CLI::NonNegativeNumber);
  command->add_option("--temperature", o->temperature, "0: always the likeliest token")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--top-k", o->top_k, "draw from so many likeliest tokens; 0: from all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seed", o->seed, "of the drawing")->capture_default_str();
  command->add_option("--tokenizer", o->tokenizer, "tokenizer.json or its folder; without it the model's own");
  add_threads(command, o->threads);
  command->callback([o] { run_generate(*o); });
}

} // namespace triax
