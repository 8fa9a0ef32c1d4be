// triax data: text to tokenizer and token shards.
#include "data/bpe_train.h"
#include "data/prepare.h"
#include "kernels/check.h"
#include "train/commands.h"
#include "train/log.h"
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

namespace triax {
namespace {

namespace fs = std::filesystem;

constexpr double kMostHeldOut = 0.999; // something must be left to train on

void add_document_options(CLI::App* command, DocumentOptions& documents) {
  command->add_option("--input", documents.inputs, ".txt or .jsonl files")->required();
  command->add_option("--separator", documents.separator,
                      "text between the documents of a .txt file; without it a file is a document");
  command->add_option("--key", documents.key, "the key of the text in JSON lines")->capture_default_str();
  command->add_flag("--lenient", documents.lenient,
                    "count faulty lines by reason and leave them out, instead of stopping at the first");
}

struct TokenizerOptions {
  DocumentOptions documents;
  BpeTrainOptions bpe;
  double held_out = 0;
  uint64_t seed = 0;
  std::string output;
};

void train_tokenizer(const TokenizerOptions& o) {
  const fs::path file = fs::path(o.output) / "tokenizer.json";
  std::error_code error;
  DEMAND(!fs::exists(o.output, error) || fs::is_directory(o.output, error), "--out: ", o.output,
         " is a file; name a folder for tokenizer.json");
  DEMAND(!fs::exists(file, error), "--out: ", file.string(), " exists already; remove it or name another folder");
  DocumentReader reader(o.documents);
  int64_t index = 0;
  const auto next = [&](std::string_view& document) { // held-out documents teach the tokenizer nothing
    while (reader.next(document))
      if (!is_held_out(index++, o.seed, o.held_out)) return true;
    return false;
  };
  const Tokenizer tokenizer = train_bpe(next, o.bpe);
  make_folder("--out", o.output);
  tokenizer.save(o.output);
  std::cout << "tokenizer of " << tokenizer.vocab_size() << " tokens from "
            << with_commas(double(reader.counts().text_bytes)) << " bytes of text: " << o.output << "\n";
}

void add_tokenizer(CLI::App* data) {
  CLI::App* tokenizer = data->add_subcommand("tokenizer", "train one, encode, decode");
  tokenizer->require_subcommand(1);

  auto train = std::make_shared<TokenizerOptions>();
  CLI::App* command = tokenizer->add_subcommand("train", "learn a byte-level BPE vocabulary");
  add_document_options(command, train->documents);
  command->add_option("--vocab", train->bpe.vocab_size, "tokens, the 256 bytes and end of text included")
      ->capture_default_str()
      ->check(whole_number(257, 1 << 24));
  command
      ->add_option("--held-out", train->held_out,
                   "share of documents to leave out, the same ones that `prepare` holds out")
      ->check(real_number(0, kMostHeldOut));
  command->add_option("--seed", train->seed, "of the split")->check(whole_number(0, INT64_MAX));
  command->add_option("--out", train->output, "folder for tokenizer.json")->required();
  command->callback([train] { train_tokenizer(*train); });

  auto path = std::make_shared<std::string>();
  CLI::App* encode = tokenizer->add_subcommand("encode", "text on standard input to ids on standard output");
  encode->add_option("tokenizer", *path, "tokenizer.json or its folder")->required();
  encode->callback([path] {
    const std::string text(std::istreambuf_iterator<char>(std::cin), {});
    for (int32_t id : Tokenizer::load(*path).encode(text)) std::cout << id << " ";
    std::cout << "\n";
  });
  CLI::App* decode = tokenizer->add_subcommand("decode", "ids on standard input to text on standard output");
  decode->add_option("tokenizer", *path, "tokenizer.json or its folder")->required();
  decode->callback([path] {
    const std::vector<int32_t> ids(std::istream_iterator<int32_t>(std::cin), {});
    DEMAND(std::cin.eof(), "standard input: something that is no number stands behind ", ids.size(), " ids");
    std::cout << Tokenizer::load(*path).decode(ids);
  });
}

struct PrepareCommand {
  PrepareOptions prepare;
  std::string tokenizer;
};

void add_prepare(CLI::App* data) {
  auto o = std::make_shared<PrepareCommand>();
  CLI::App* command = data->add_subcommand("prepare", "write token shards for training");
  add_document_options(command, o->prepare.documents);
  command->add_option("--tokenizer", o->tokenizer, "tokenizer.json or its folder")->required();
  command->add_option("--out", o->prepare.output, "folder to make")->required();
  command->add_option("--held-out", o->prepare.held_out, "share of documents kept for evaluation")
      ->capture_default_str()
      ->check(real_number(0, kMostHeldOut));
  command->add_option("--seed", o->prepare.seed, "of the split")->check(whole_number(0, INT64_MAX));
  command->add_option("--shard-tokens", o->prepare.shard_tokens, "most tokens of one shard")
      ->capture_default_str()
      ->check(whole_number(1, INT64_MAX));
  command->callback([o] {
    demand_exists("--tokenizer", o->tokenizer);
    std::cout << prepare(o->prepare, Tokenizer::load(o->tokenizer)).text() << std::flush;
  });
}

} // namespace

void add_data(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "prepare text for training");
  data->require_subcommand(1);
  add_tokenizer(data);
  add_prepare(data);
}

} // namespace triax
