// One function a subcommand: each adds its options to the command line and what is done when it is given. One file
// each.
#pragma once
#include <CLI/CLI.hpp>

namespace triax {

/// --threads, as every command that computes has it.
CLI::Option* add_threads(CLI::App* command, int64_t& threads);

void add_train(CLI::App& app, char** arguments);
void add_plan(CLI::App& app);
void add_init(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_data(CLI::App& app);
void add_bench(CLI::App& app, char** arguments);
void add_help(CLI::App& app);

} // namespace triax
