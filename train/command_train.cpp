// triax train: a run from its configuration, under mpirun, srun, or alone.
#include "train/commands.h"
#include "train/favourites.h"
#include "train/machine.h"
#include "train/run.h"
#include <filesystem>
#include <iostream>

namespace triax {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string config, target = "auto";
  std::vector<std::string> sets;
  Run::CaptureOptions capture{"", 3};
};

void run_train(const Options& options, char** arguments) {
  const Launch launch = Launch::detect();
  if (launch.world > 0) { // what can be refused is refused before MPI starts
    const RunConfig config = load_config(options.config, options.sets, launch.world);
    const int local = announced_local_size();
    wait_passively_if_crowded(arguments, choose_threads(config.threads, local), local);
  }
  Transport& transport = Transport::join(launch);
  const RunConfig config = load_config(options.config, options.sets, transport.size());
  if (transport.rank() == 0)
    for (const std::string& note : config.notes) std::cerr << note << "\n";
  if (transport.rank() == 0 && !options.capture.folder.empty())
    DEMAND(!fs::exists(options.capture.folder) || fs::is_empty(options.capture.folder),
           "--capture: ", options.capture.folder, " is not empty; name a fresh folder");
  transport.set_timeout(config.comm.timeout);
  const Target target = options.target == "auto" ? best_target() : Target::parse(options.target);
  const std::string sentence = transport.choose(config.comm.transport, target);
  if (transport.rank() == 0 && !sentence.empty()) std::cerr << sentence << "\n";
  settle_favourites(transport, target);
  Run run(config, transport, target, options.capture);
  train(run);
}

} // namespace

void add_train(CLI::App& app, char** arguments) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("train", "train a model (under mpirun, srun, or alone)");
  command->add_option("config", options->config, "the run's JSON file (see `triax help config`)")->required();
  command->add_option("--set", options->sets, "KEY=VALUE: override a setting; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--target", options->target, "auto, cpu, or a GPU architecture such as sm_90a");
  CLI::Option* capture =
      command->add_option("--capture", options->capture.folder,
                          "a fresh folder for what each step computes, as `triax diff` compares it; a few steps "
                          "are run and nothing is saved");
  command->add_option("--capture-steps", options->capture.steps, "how many")
      ->check(whole_number(1, 1'000'000))
      ->needs(capture);
  command->callback([options, arguments] { run_train(*options, arguments); });
}

} // namespace triax
