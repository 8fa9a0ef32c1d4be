// triax eval: loss, perplexity and bits per byte of held-out text.
#include "data/file.h"
#include "kernels/check.h"
#include "train/commands.h"
#include "train/inference.h"
#include "train/machine.h"
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numbers>

namespace triax {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string model, data, split = "val";
  int64_t sequence = 0, batch = 8, threads = 0;
  bool json = false;
};

/// Bits per byte and the loss itself mean something only where model, data and tokenizer share their ids.
Tokenizer checked_tokenizer(const Options& o, const std::string& model, const Dataset& data) {
  const Tokenizer tokenizer = Tokenizer::load(o.data);
  DEMAND(data.tokenizer_hash() == 0 || data.tokenizer_hash() == tokenizer.hash(), "--data: the tokenizer in ", o.data,
         " (", hex64(tokenizer.hash()), ") is not the one that its shards were made with (",
         hex64(data.tokenizer_hash()), "); put that one back, or prepare the data again");
  std::error_code error;
  if (fs::exists(fs::path(model) / "tokenizer.json", error))
    DEMAND(Tokenizer::load(model).hash() == tokenizer.hash(), "the model in ", model,
           " has another tokenizer than the data in ", o.data,
           "; prepare the data with the model's: triax data prepare --tokenizer ", model);
  return tokenizer;
}

void run_eval(const Options& o) {
  demand_exists("--data", o.data);
  const std::string folder = model_folder(o.model);
  Inference model(folder, best_target(), choose_threads(o.threads, 1), o.batch, o.sequence);
  DatasetOptions options;
  options.folder = o.data;
  options.split = o.split;
  options.sequence = model.sequence();
  options.shuffle = false;
  options.vocabulary = model.model().vocabulary;
  const Dataset data = Dataset::open(options);
  const Tokenizer tokenizer = checked_tokenizer(o, folder, data);
  double nats = 0, tokens = 0, bytes = 0;
  for (int64_t first = 0; first < data.samples_per_epoch(); first += o.batch) {
    const Batch batch = data.batch_once(first, o.batch, data.samples_per_epoch());
    const Inference::Loss loss = model.loss(batch);
    nats += loss.nats;
    tokens += loss.tokens;
    bytes += double(label_bytes(batch, tokenizer));
  }
  const double loss = nats / tokens, bits = nats / std::numbers::ln2 / bytes;
  if (o.json)
    std::cout << nlohmann::ordered_json{{"loss", loss},
                                        {"perplexity", std::exp(loss)},
                                        {"bits_per_byte", bits},
                                        {"tokens", tokens},
                                        {"bytes", bytes}}
                     .dump()
              << "\n";
  else
    std::cout << "loss " << loss << " nats a token, perplexity " << std::exp(loss) << ", " << bits
              << " bits per byte over " << int64_t(tokens) << " tokens, " << int64_t(bytes) << " bytes of text\n";
}

} // namespace

void add_eval(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("eval", "loss and bits per byte of held-out text");
  command->add_option("model", o->model, "a run's folder, a checkpoint, or a Hugging Face folder")->required();
  command->add_option("--data", o->data, "folder made by `triax data prepare`")->required();
  command->add_option("--split", o->split, "val or train")
      ->capture_default_str()
      ->check(CLI::IsMember({"val", "train"}));
  command->add_option("--sequence", o->sequence, "tokens of context; 0: the model's, up to 2048")
      ->check(whole_number(0, 1 << 24));
  command->add_option("--batch", o->batch, "sequences at once")->capture_default_str()->check(whole_number(1, 1 << 20));
  add_threads(command, o->threads);
  command->add_flag("--json", o->json, "one line of JSON");
  command->callback([o] { run_eval(*o); });
}

} // namespace triax
