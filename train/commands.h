// One function a subcommand: each adds its options to the command line and what is done when it is given. One file
// each.
#pragma once
#include <CLI/CLI.hpp>

namespace triax {

/// For `check` of an option: a decimal whole number or a finite number from `low` to `high`; else a sentence with both.
CLI::Validator whole_number(int64_t low, int64_t high);
CLI::Validator real_number(double low, double high);

/// Makes the folder that `option` names, parents too. Throws naming the option when a file is in the way.
void make_folder(const std::string& option, const std::string& path);
/// Throws naming the option when nothing is there.
void demand_exists(const std::string& option, const std::string& path);

/// The sentence for a command line that was refused: an unknown command or option with the nearest known one, what is
/// missing, or what `error` says.
std::string refusal(const CLI::App& app, const CLI::ParseError& error);

/// --threads, as every command that computes has it.
CLI::Option* add_threads(CLI::App* command, int64_t& threads);

/// Of the whole program: `done` after a command that went well, `error` after an error.
struct ExitCodes {
  int done = 0, error = 1;
};

void add_train(CLI::App& app, char** arguments);
void add_plan(CLI::App& app);
void add_init(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_data(CLI::App& app);
void add_bench(CLI::App& app, char** arguments);
void add_compare(CLI::App* bench);
void add_diff(CLI::App& app, ExitCodes& codes);
void add_help(CLI::App& app);

} // namespace triax
