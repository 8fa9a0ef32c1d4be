// triax plan: does it fit, and what does a step consist of - for any target, without it.
#include "model/flops.h"
#include "train/commands.h"
#include "train/log.h"
#include "train/machine.h"
#include "train/memory_table.h"
#include "train/trainer.h"
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>

namespace triax {
namespace {

struct Options {
  std::string config, target = "auto";
  std::vector<std::string> sets;
  bool operations = false, schedule = false;
};

void print_programs(const Plan& plan) {
  std::cout << "step    instructions  operations  distinct  TFLOP\n";
  for (const Program& p : plan.programs) {
    int64_t operations = 0;
    for (const Instruction& i : p.instructions) operations += i.what == Instruction::What::op;
    std::cout << std::left << std::setw(12) << p.kind << std::right << std::setw(8) << p.instructions.size()
              << std::setw(12) << operations << std::setw(10) << p.signatures.size() << std::setw(9) << std::fixed
              << std::setprecision(3) << p.flops() / 1e12 << "\n";
  }
}

/// What the training step issues, by kind of operation.
void print_operations(const Program& p) {
  struct Sum {
    int64_t count = 0;
    double flops = 0, bytes = 0;
    bool trusted = false;
  };
  std::map<std::string, Sum> kinds;
  for (const Instruction& i : p.instructions) {
    if (i.what != Instruction::What::op) continue;
    const Signature& s = p.signatures[i.index];
    Sum& sum = kinds[s.op.kind->name];
    ++sum.count;
    sum.flops += s.description.flops;
    sum.bytes += s.description.bytes;
    sum.trusted = s.description.trusted;
  }
  std::cout << "operation              count     GFLOP        MB\n";
  for (const auto& [name, sum] : kinds)
    std::cout << std::left << std::setw(20) << name << std::right << std::setw(8) << sum.count << std::setw(10)
              << std::setprecision(2) << sum.flops / 1e9 << std::setw(10) << sum.bytes / 1e6
              << (sum.trusted ? "  trusted" : "") << "\n";
}

/// What each stage has, and what it needs.
void print_pipeline(const RunConfig& config, const std::vector<Plan>& plans, std::ostream& out) {
  const int stages = int(plans.size());
  if (stages == 1) return;
  const auto parts = split_layers(config.model.layers, stages, int(config.pipeline.chunks), config.pipeline.layout);
  out << "stage   layers                            MiB\n";
  for (int s = 0; s < stages; ++s) {
    std::string layers;
    for (size_t v = size_t(s); v < parts.size(); v += size_t(stages)) {
      const LayerRange& part = parts[v];
      layers += concat(layers.empty() ? "" : ", ", part.embedding ? "embedding " : "");
      if (part.count > 0) layers += concat(part.first, "-", part.first + part.count - 1);
      if (part.head) layers += " head";
    }
    out << std::left << std::setw(8) << s << std::setw(28) << layers << std::right << std::setw(9)
        << (plans[size_t(s)].bytes[int(Space::device)] >> 20) << "\n";
  }
}

/// The pipeline's order of work, drawn, and what is published of it.
void print_schedule(const RunConfig& config, const Mesh& mesh, std::ostream& out) {
  const PipelineSchedule schedule = schedule_of(config, mesh);
  out << draw(schedule) << "schedule " << name_of(schedule.kind) << ": " << schedule.stages << " stages, "
      << schedule.micro_batches << " micro-batches: a bubble of " << std::fixed << std::setprecision(1)
      << 100 * time_schedule(schedule).bubble << "% of computing (" << 100 * bubble_formula(schedule)
      << "% by the formula), where backward takes twice as long as forward; in flight at most";
  for (int s = 0; s < schedule.stages; ++s) out << (s ? ", " : " ") << in_flight_formula(schedule, s).most;
  out << " on stages 0 to " << schedule.stages - 1 << "\n";
}

void run_plan(const Options& options) {
  const RunConfig config = load_config(options.config, options.sets);
  const Target target = options.target == "auto" ? best_target() : Target::parse(options.target);
  const MeshShape shape = mesh_shape(config);
  const Mesh mesh(shape, 0, int(shape.ranks()));
  const std::vector<Plan> plans = make_plans(target, choose_threads(config.threads, 1), mesh, config);
  const auto needs = [](const Plan& a) { return a.bytes[int(Space::device)]; };
  const auto largest =
      std::max_element(plans.begin(), plans.end(), [&](const Plan& a, const Plan& b) { return needs(a) < needs(b); });
  const Plan& plan = *largest;
  print_origins(config, std::cout);
  std::cout << "model   " << with_commas(double(ParamTable(config.model).count())) << " parameters, "
            << training_flops_per_token(config.model, config.data.sequence) / 1e9 << " GFLOP a token; "
            << mesh.describe() << "\n";
  print_pipeline(config, plans, std::cout);
  print_memory(plan, std::cout);
  print_programs(plan);
  if (options.schedule) print_schedule(config, mesh, std::cout);
  if (options.operations) print_operations(*plan.find("train"));
  std::cout << "check   " << plan.programs.size() << " kinds of step: streams ok, arena ok, collectives of "
            << mesh.world() << (mesh.world() == 1 ? " rank" : " ranks") << " ok; plan " << std::hex << plan.hash()
            << std::dec << "\n";
}

} // namespace

void add_plan(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("plan", "does it fit: exact memory and the checked step, on any target, without it");
  command->add_option("config", options->config, "the run's JSON file")->required();
  command->add_option("--set", options->sets, "KEY=VALUE: override a setting; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--target", options->target, "auto, cpu, or a GPU architecture such as sm_90a");
  command->add_flag("--schedule", options->schedule, "draw the pipeline's schedule");
  command->add_flag("--operations", options->operations, "list what a training step issues, by kind");
  command->callback([options] { run_plan(*options); });
}

} // namespace triax
