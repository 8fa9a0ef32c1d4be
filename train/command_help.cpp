// triax help config: every setting with its default and a sentence; and what the command line itself is held to.
#include "kernels/check.h"
#include "model/sizes.h"
#include "train/commands.h"
#include "train/config.h"
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iostream>

namespace triax {
namespace {

namespace fs = std::filesystem;

/// A validator that also writes the number as it was read: CLI11 would take 010 for eight.
template <class T> CLI::Validator number(const char* kind, T low, T high) {
  const std::string range = concat(low, " to ", high);
  return {[kind, low, high, range](std::string& text) {
            T value{};
            const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool whole = error == std::errc() && stop == text.data() + text.size();
            if (!whole || !(value >= low && value <= high)) return concat(text, " is not ", kind, " from ", range);
            if constexpr (std::is_integral_v<T>) text = std::to_string(value);
            return std::string();
          },
          range};
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// `word` is what the command `at`, called `name`, did not expect.
std::string unexpected(const CLI::App& at, const std::string& name, const std::string& word) {
  const bool option = word.rfind("-", 0) == 0;
  const std::vector<std::string> known = option ? option_names(at) : command_names(at);
  if (known.empty()) return concat(name, ": \"", word, "\" is one argument too many");
  const std::string nearest = nearest_name(word.substr(0, word.find('=')), known);
  return concat("there is no ", option ? "option " : "command ", name, " ", word,
                nearest.empty() ? "" : "; did you mean " + nearest + "?");
}

} // namespace

CLI::Validator whole_number(int64_t low, int64_t high) { return number<int64_t>("a whole number", low, high); }
CLI::Validator real_number(double low, double high) { return number<double>("a number", low, high); }

void make_folder(const std::string& option, const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  DEMAND(fs::is_directory(path, error), option, ": cannot make the folder ", path, ": ",
         error ? error.message() : "a file is in the way", "; name another folder");
}

void demand_exists(const std::string& option, const std::string& path) {
  std::error_code error;
  DEMAND(fs::exists(path, error), option, ": there is no file or folder ", path);
}

std::string refusal(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* at = &app;
  std::string name = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  std::string sentence = name + ": " + error.what();
  const int code = error.get_exit_code();
  if (code == int(CLI::ExitCodes::RequiredError) || code == int(CLI::ExitCodes::ExtrasError)) {
    const std::vector<std::string> words = app.remaining(true), commands = command_names(*at);
    if (!words.empty())
      sentence = unexpected(*at, name, words.front());
    else if (!commands.empty())
      sentence = concat(name, ": a command is missing: ", CLI::detail::join(commands, " or "));
  }
  return concat(sentence, " (see `", name, " --help`)");
}

CLI::Option* add_threads(CLI::App* command, int64_t& threads) {
  return command->add_option("--threads", threads, "of one rank; 0: the cores that it may use")
      ->check(whole_number(0, most_threads()));
}

void add_help(CLI::App& app) {
  CLI::App* command = app.add_subcommand("help", "explain: `triax help config` lists every setting");
  command->require_subcommand(1);
  command->add_subcommand("config", "every setting of a run, its default and a sentence")->callback([] {
    print_help(std::cout);
  });
}

} // namespace triax
