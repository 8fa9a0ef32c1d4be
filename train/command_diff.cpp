// triax diff: two configurations run side by side until the first tensor that differs.
#include "data/split_info.h"
#include "train/capture_compare.h"
#include "train/commands.h"
#include "train/config.h"
#include "train/machine.h"
#include "train/subprocess.h"
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

namespace triax {
namespace {

struct Options {
  std::string paths[2];
  std::vector<std::string> sets, own_sets[2];
  int64_t steps = 3;
  double within = 0;
};

constexpr const char* kSides[] = {"A", "B"};

struct Side {
  const char* name;
  std::string path;
  std::vector<std::string> sets;
  RunConfig config;
  int64_t ranks() const { return mesh_shape(config).ranks(); }
};

Side side_of(const Options& o, int i) {
  Side side{kSides[i], o.paths[i], o.sets, {}};
  side.sets.insert(side.sets.end(), o.own_sets[i].begin(), o.own_sets[i].end());
  side.config = load_config(side.path, side.sets);
  DEMAND(side.config.mesh.pp == 1, "diff: mesh.pp is ", side.config.mesh.pp, " in ", side.name, ", ", side.path,
         ", but only tensors of whole models are compared; set mesh.pp=1 (with train.repro a pipeline's bits are the "
         "same)");
  return side;
}

/// With another one of these, not even the first numbers can agree.
bool must_be_equal(const std::string& key) {
  constexpr const char* kKeys[] = {"data.sequence", "data.seed", "data.shuffle", "train.seed", "train.global_batch"};
  return key.rfind("model.", 0) == 0 || std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
}

/// Refuses what cannot be compared; prints the other settings that differ.
void compare_settings(Side& a, Side& b) {
  const std::vector<Setting> left = settings(a.config), right = settings(b.config);
  std::string differing;
  for (size_t i = 0; i < left.size(); ++i) {
    const std::string in_a = value_text(left[i]), in_b = value_text(right[i]), &key = left[i].key;
    DEMAND(in_a == in_b || !must_be_equal(key), "diff: ", key, " is ", in_a, " in A, ", a.path, ", and ", in_b,
           " in B, ", b.path,
           ": two trainings that have nothing to compare; make it the same, with --set for instance");
    if (in_a != in_b && key.rfind("run.", 0) != 0 && key != "data.folder")
      differing += concat("\n  ", key, ": ", in_a, " in A, ", in_b, " in B");
  }
  DEMAND(split_info(a.config.data.folder, "train").identity == split_info(b.config.data.folder, "train").identity,
         "diff: data.folder holds other tokens in A, ", a.config.data.folder, ", than in B, ", b.config.data.folder);
  std::cout << (differing.empty() ? "no setting differs: two runs of one configuration" : "settings that differ:")
            << differing << "\n";
}

std::string last_lines(const std::string& path, size_t most) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::string text;
  for (size_t i = lines.size() - std::min(lines.size(), most); i < lines.size(); ++i) text += "\n  " + lines[i];
  return text;
}

void capture(const Side& side, int64_t steps, int64_t threads, const ScratchFolder& scratch) {
  std::cout << side.name << "  " << side.path << ": " << mesh_shape(side.config).arithmetic() << ", " << side.ranks()
            << (side.ranks() == 1 ? " rank" : " ranks") << std::endl;
  std::vector<std::string> words{"train", side.path};
  for (const std::string& set : side.sets) words.insert(words.end(), {"--set", set});
  words.insert(words.end(), {"--set", concat("threads=", threads), "--capture", scratch / side.name, "--capture-steps",
                             std::to_string(steps)});
  const std::string output = scratch / concat(side.name, ".txt");
  const int code = run_triax(words, int(side.ranks()), output);
  DEMAND(code == 0, "diff: the run of ", side.name, ", ", side.path, ", ended with exit code ", code,
         "; the last it said:", last_lines(output, 12));
}

std::string number(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

void print_difference(const TensorDifference& d) {
  const ValueDifference& v = d.values;
  const int64_t columns = d.tensor.columns;
  std::cout << "  " << v.elements << " of " << d.tensor.size() << " elements differ, the norm by "
            << number(v.relative, "%.2g") << "; half of them by up to " << number(v.median_ulps, "%.10g")
            << " units in the last place (" << name_of(d.tensor.dtype) << "), most by " << number(v.ulps, "%.10g")
            << " at [" << (columns == 1 ? concat(v.at) : concat(v.at / columns, ", ", v.at % columns))
            << "]: " << number(v.a, "%.9g") << " in A, " << number(v.b, "%.9g") << " in B\n";
}

void print_comparison(const CaptureComparison& c, double within) {
  const std::string over = concat(c.tensors, " tensors of ", c.steps, c.steps == 1 ? " step" : " steps");
  const std::string limit = concat("within ", number(within, "%g"), " of their norms");
  if (c.equal == c.tensors) {
    std::cout << "the same to the bit over " << over << "\n";
  } else if (c.differing.empty()) {
    std::cout << "the same " << limit << " over " << over << ", " << c.equal
              << " of them to the bit; furthest: " << c.largest.tensor.describe() << "\n";
    print_difference(c.largest);
  } else {
    constexpr size_t kMost = 5;
    std::cout << "first difference: " << c.differing[0].tensor.describe() << "\n";
    print_difference(c.differing[0]);
    for (size_t i = 1; i < std::min(c.differing.size(), kMost); ++i)
      std::cout << "  then " << c.differing[i].tensor.describe() << ", the norm by "
                << number(c.differing[i].values.relative, "%.2g") << "\n";
    std::cout << "in all " << c.differing.size() << " of " << over << " differ"
              << (within > 0 ? concat(" by more than ", number(within, "%g"), " of their norms") : std::string())
              << "\n";
    if (within > 0 && c.differing[0].tensor.phase == Phase::weights)
      std::cout
          << "note: Adam turns the rounding of a gradient near zero into a whole step; --set optimizer.eps=1 shows "
             "whether it is that\n";
  }
}

bool run_diff(const Options& options) {
  DEMAND(Launch::detect().launcher == "none", "diff starts the ranks of both runs itself: start it without mpirun");
  Side a = side_of(options, 0), b = side_of(options, 1);
  compare_settings(a, b);
  const int64_t steps = std::min({options.steps, a.config.train.steps, b.config.train.steps});
  // Where threads are not given both get the same, since products may depend on them.
  const int64_t fair = choose_threads(0, int(std::max(a.ranks(), b.ranks())));
  const ScratchFolder scratch("triax-diff");
  for (const Side* side : {&a, &b})
    capture(*side, steps, side->config.threads > 0 ? side->config.threads : fair, scratch);
  const CaptureComparison comparison =
      compare_captures(CapturedRun(scratch / a.name), CapturedRun(scratch / b.name), options.within);
  print_comparison(comparison, options.within);
  return comparison.differing.empty();
}

} // namespace

void add_diff(CLI::App& app, ExitCodes& codes) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "diff", "run two configurations from the start and name the first tensor that differs; exit code 1 if one does");
  command->add_option("A", options->paths[0], "a run's JSON file; mesh.dp counts as 1 where it is not given")
      ->required();
  command->add_option("B", options->paths[1], "another, or the same with another --set-b")->required();
  const auto add_sets = [&](const char* name, std::vector<std::string>& sets, const char* whose) {
    command->add_option(name, sets, concat("KEY=VALUE: override a setting of ", whose, "; may be repeated"))
        ->allow_extra_args(false);
  };
  add_sets("--set", options->sets, "both");
  add_sets("--set-a", options->own_sets[0], "A");
  add_sets("--set-b", options->own_sets[1], "B");
  command->add_option("--steps", options->steps, "how many are run and compared")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
  command
      ->add_option("--within", options->within,
                   "what counts as equal: norm of the difference over the norm of A's tensor; 0: the same bits")
      ->check(real_number(0, 1e6))
      ->capture_default_str();
  command->callback([options, &codes] {
    codes.error = 2;
    codes.done = run_diff(*options) ? 0 : 1;
  });
}

} // namespace triax
