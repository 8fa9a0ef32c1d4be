// triax help config: every setting with its default and a sentence.
#include "train/commands.h"
#include "train/config.h"
#include <iostream>

namespace triax {

CLI::Option* add_threads(CLI::App* command, int64_t& threads) {
  return command->add_option("--threads", threads, "of one rank; 0: the cores that it may use")
      ->check(CLI::Range(0, 4096));
}

void add_help(CLI::App& app) {
  CLI::App* command = app.add_subcommand("help", "explain: `triax help config` lists every setting");
  command->require_subcommand(1);
  command->add_subcommand("config", "every setting of a run, its default and a sentence")->callback([] {
    print_help(std::cout);
  });
}

} // namespace triax
