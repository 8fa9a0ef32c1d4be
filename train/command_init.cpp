// triax init: a run.json to start from.
#include "model/params.h"
#include "train/commands.h"
#include "train/config.h"
#include <iostream>
#include <nlohmann/json.hpp>

namespace triax {
namespace {

struct Options {
  std::string model, data = "data";
  int64_t ranks = 1, tokens_per_step = 0;
};

/// Steps and batch as published runs of that size have them: half a million tokens a step up to a few billion
/// parameters, four million above (GPT-3, table 2.1); 20 tokens a parameter (Hoffmann et al. 2022).
void run_init(const Options& o) {
  RunConfig c = load_config("", {"model=" + o.model, "data.folder=" + o.data}, 0);
  const double parameters = double(triax::parameters(c.model));
  const int64_t sequence = std::min<int64_t>(c.model.context, 8192);
  const int64_t tokens = o.tokens_per_step  ? o.tokens_per_step
                         : parameters < 1e8 ? 1 << 16
                         : parameters < 5e9 ? 1 << 19
                                            : 1 << 22;
  const int64_t batch = std::max<int64_t>(tokens / sequence / o.ranks, 1) * o.ranks;
  const int64_t steps = std::max<int64_t>(int64_t(20 * parameters / double(batch * sequence)), 1);
  const double lr = parameters < 5e8 ? 6e-4 : parameters < 5e9 ? 3e-4 : 1.5e-4;
  std::cout << "{\n"
            << "  // " << o.model << ": every other setting has a default; `triax help config` explains all of them.\n"
            << "  \"model\": " << nlohmann::json(o.model) << ",\n"
            << (o.model.rfind("hf:", 0) == 0
                    ? concat("  \"checkpoint\": {\"initial\": ", nlohmann::json(o.model.substr(3)),
                             "}, // go on from its weights\n")
                    : "")
            << "  \"data\": {\"folder\": " << nlohmann::json(o.data) << ", \"sequence\": " << sequence << "},\n"
            << "  \"train\": {\n"
            << "    \"steps\": " << steps << ", // 20 tokens a parameter\n"
            << "    \"global_batch\": " << batch << " // sequences: " << batch * sequence << " tokens a step\n"
            << "  },\n"
            << "  \"optimizer\": {\"lr\": " << lr << ", \"warmup_steps\": " << std::min<int64_t>(steps / 10, 2000)
            << "},\n"
            << "  \"mesh\": {\"dp\": " << o.ranks << "}\n"
            << "}\n";
}

} // namespace

void add_init(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("init", "print a run.json for a model, a data folder and a number of ranks");
  command->add_option("model", o->model, "a named size (see `triax help config`) or hf:FOLDER")->required();
  command->add_option("--data", o->data, "folder made by `triax data prepare`")->capture_default_str();
  command->add_option("--ranks,--gpus", o->ranks, "ranks that will train")
      ->capture_default_str()
      ->check(whole_number(1, 1'000'000));
  command->add_option("--tokens-per-step", o->tokens_per_step, "0: by the model's size")
      ->check(whole_number(0, int64_t{1} << 32));
  command->callback([o] { run_init(*o); });
}

} // namespace triax
