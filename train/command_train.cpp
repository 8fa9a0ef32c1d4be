// triax train: a run from its configuration, under mpirun, srun, or alone.
#include "train/commands.h"
#include "train/machine.h"
#include "train/run.h"
#include <iostream>

namespace triax {
namespace {

struct Options {
  std::string config, target = "auto";
  std::vector<std::string> sets;
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
  Run run(config, transport, options.target == "auto" ? best_target() : Target::parse(options.target));
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
  command->callback([options, arguments] { run_train(*options, arguments); });
}

} // namespace triax
