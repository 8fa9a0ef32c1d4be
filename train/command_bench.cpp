// triax bench: a table for people and JSON for programs. Every speed stands beside what the machine could do, measured
// in the same run.
#include "kernels/matmul.h"
#include "model/sizes.h"
#include "train/bench_against.h"
#include "train/bench_pipeline.h"
#include "train/bench_training.h"
#include "train/commands.h"
#include "train/machine.h"
#include "train/memory_table.h"
#include "train/publish.h"
#include "train/receipt.h"
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

namespace triax {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string output = "runs/bench", target = "auto", model, dtype, name, kind, size = "usual", against;
  std::vector<std::string> sets;
  int64_t threads = 0, batch = 8, milliseconds = 20;
  int steps = 3, pairs = 9;
  bool check = false, repro = false;

  BenchPlace place(int ranks_on_host) const {
    return {target == "auto" ? best_target() : Target::parse(target), choose_threads(threads, ranks_on_host)};
  }
};

/// What was asked for.
Json json_of(const Options& o) {
  return {{"model", o.model}, {"dtype", o.dtype},     {"name", o.name},   {"kind", o.kind},
          {"size", o.size},   {"sets", o.sets},       {"batch", o.batch}, {"steps", o.steps},
          {"pairs", o.pairs}, {"against", o.against}, {"repro", o.repro}};
}

/// NAME.json, and what it was measured with beside it.
std::string publish_rows(const Options& o, const std::string& name, const Json& rows) {
  make_folder("--out", o.output);
  const std::filesystem::path path = std::filesystem::path(o.output) / (name + ".json");
  publish_text(path.string(), rows.dump(2) + "\n");
  const Transport* transport = Transport::current();
  const int ranks = transport ? transport->size() : 1, local = transport ? transport->local_size() : 1;
  const BenchPlace place = o.place(local);
  const Receipt receipt("bench " + name.substr(0, name.find('-')), json_of(o), ranks, local, place.target,
                        place.threads);
  receipt.write(std::filesystem::path(path).replace_extension(kReceiptEnding).string(), rows);
  return path.string();
}

/// Left-aligned where the width is negative, as printf has it.
std::string cell(int width, const std::string& text) {
  const std::string gap(size_t(std::max(0, std::abs(width) - int(text.size()))), ' ');
  return width < 0 ? text + gap : gap + text;
}
std::string cell(int width, int digits, double value) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return cell(width, text.str());
}

// ---- training ----

Json json_of(const TrainingRow& r) {
  Json row{{"model", r.model},
           {"target", r.target},
           {"dtype", name_of(r.dtype)},
           {"ranks", r.ranks},
           {"threads", r.threads},
           {"batch", r.batch},
           {"micro_batch", r.micro_batch},
           {"sequence", r.sequence},
           {"parameters", r.parameters},
           {"repro", r.repro},
           {"step_s", r.step_seconds},
           {"tokens_per_s", r.tokens_per_second},
           {"flops_per_token", r.flops_per_token},
           {"matrix_rate", r.matrix_rate},
           {"mfu", r.mfu},
           {"start_s", r.start_seconds},
           {"loss", r.loss},
           {"planned_bytes", r.planned_bytes},
           {"available_bytes", r.available_bytes}};
  if (r.taken_bytes > 0) row["taken_bytes"] = r.taken_bytes;
  return row;
}

void print_training(const TrainingRow& r) {
  std::cout << cell(-14, r.model) << cell(-6, name_of(r.dtype)) << cell(-16, concat(r.ranks, " x ", r.threads))
            << cell(9, 0, r.tokens_per_second) << cell(9, 0, r.tokens_per_second * r.flops_per_token / 1e9)
            << cell(16, 0, r.matrix_rate / 1e9) << cell(6, 1, 100 * r.mfu) << "%" << cell(7, 1, r.start_seconds)
            << " s  " << cell(10, bytes_text(r.planned_bytes))
            << (r.taken_bytes > 0 ? concat(" (", bytes_text(r.taken_bytes), " taken)") : std::string()) << "  "
            << r.micro_batch << " x " << r.sequence << (r.repro ? "  repro" : "") << std::endl;
}

void bench_training_command(const Options& o, char** arguments) {
  const Launch launch = Launch::detect();
  const int local = announced_local_size();
  TrainingOptions t;
  t.place = o.place(local);
  t.steps = o.steps;
  t.sets = o.sets;
  wait_passively_if_crowded(arguments, t.place.threads, local);
  Transport& transport = Transport::join(launch);
  const bool first = transport.rank() == 0;
  const int64_t ranks = transport.size();
  t.batch = (o.batch + ranks - 1) / ranks * ranks;
  if (first && t.batch != o.batch)
    std::cout << "a batch of " << t.batch << " instead of " << o.batch << ", so that " << ranks << " ranks share it\n";
  if (first)
    std::cout << "model         dtype ranks x threads  tokens/s  GFLOP/s  of matrix rate   MFU    start      memory  "
                 "micro-batch\n";
  Json rows = Json::array();
  for (const std::string& model : o.model.empty() ? usual_models(t.place) : std::vector<std::string>{o.model})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      const bool asked = o.dtype == name_of(dtype);
      const bool usual = t.place.gpu() ? dtype == Dtype::bf16 : dtype == Dtype::f32 || cpu_has_bf16();
      if (o.dtype.empty() ? !usual : !asked || (!t.place.gpu() && !usual)) continue;
      t.model = model;
      t.dtype = dtype;
      double plain = 0;
      for (const bool repro : {false, true}) {
        if (repro && !o.repro) continue;
        t.sets = o.sets;
        if (repro) t.sets.push_back("train.repro=true");
        const TrainingRow row = bench_training(transport, t);
        if (!first) continue;
        print_training(row);
        if (repro) std::cout << "repro takes " << cell(1, 2, row.step_seconds / plain) << " times as long\n";
        plain = row.step_seconds;
        rows.push_back(json_of(row));
        publish_rows(o, concat("training-", ranks, "x", t.place.threads), rows);
      }
    }
  if (first) std::cout << publish_rows(o, concat("training-", ranks, "x", t.place.threads), rows) << "\n";
}

// ---- pipeline ----

void bench_pipeline_command(const Options& o) {
  Transport& transport = Transport::join(Launch::detect());
  const bool first = transport.rank() == 0;
  DEMAND(transport.size() > 1,
         "bench pipeline has a stage on each rank, and there is one: mpirun -n 4 triax bench pipeline");
  const double unit = double(o.milliseconds) / 1000;
  if (first)
    std::cout << transport.size() << " stages, " << o.batch << " micro-batches; forward, backward and weights sleep "
              << o.milliseconds << " ms each\nschedule      step s  computing s  bubble  formula\n";
  Json rows = Json::array();
  for (const PipelineKind kind :
       {PipelineKind::gpipe, PipelineKind::one_f_one_b, PipelineKind::interleaved, PipelineKind::zero_bubble}) {
    const int chunks = kind == PipelineKind::interleaved ? 2 : 1;
    const PipelineRow r = bench_pipeline(transport, kind, int(o.batch), chunks, {unit, unit, unit, 0});
    if (!first) continue;
    std::cout << std::left << std::setw(14) << name_of(kind) << std::right << cell(6, 3, r.seconds)
              << cell(13, 3, r.computing) << cell(7, 1, 100 * r.bubble) << "%" << cell(8, 1, 100 * r.formula) << "%"
              << std::endl;
    rows.push_back({{"schedule", name_of(kind)},
                    {"stages", transport.size()},
                    {"micro_batches", o.batch},
                    {"chunks", chunks},
                    {"seconds", r.seconds},
                    {"computing", r.computing},
                    {"bubble", r.bubble},
                    {"formula", r.formula}});
  }
  if (first) std::cout << publish_rows(o, "pipeline", rows) << "\n";
}

// ---- kernels ----

Json json_of(const KernelRow& r, const Target& target) {
  Json row{{"kernel", r.name},        {"implementation", r.implementation},
           {"kind", name_of(r.kind)}, {"dtype", name_of(r.dtype)},
           {"shape", r.shape},        {"target", target.name}};
  if (r.unchecked) {
    row.update({{"seconds", nullptr}, {"unchecked", true}});
  } else if (r.error.empty()) {
    row.update({{"bytes", r.bytes}, {"flops", r.flops}, {"seconds", r.seconds}});
    if (r.kind == KernelKind::rows)
      row.update({{"copy_s", r.copy_seconds}, {"exp_s", r.exp_seconds}, {"floor_s", r.floor_seconds}});
    else
      row["matrix_rate"] = r.matrix_rate;
    row["percent"] = r.percent;
  } else {
    row["seconds"] = nullptr;
    row["error"] = r.error;
  }
  if (r.difference >= 0)
    row.update({{"difference", std::isfinite(r.difference) ? Json(r.difference) : Json("not a number")},
                {"allowed", r.allowed}});
  return row;
}

std::string name_of_row(const KernelRow& r) {
  return r.implementation == kReference ? r.name : concat(r.name, " (", r.implementation, ")");
}

void print_kernels(const std::vector<KernelRow>& rows, bool check) {
  const auto title = [&](const char* rest) {
    std::cout << cell(-28, "kernel") << cell(-6, "dtype") << cell(-28, "shape") << rest
              << (check ? "  from the CPU" : "") << "\n";
  };
  for (const bool matrix : {false, true}) {
    bool titled = false;
    for (const KernelRow& r : rows) {
      if ((r.kind != KernelKind::rows) != matrix) continue;
      if (!titled)
        title(matrix ? "   time/ms  GFLOP/s  matrix rate  of it" : "   time/ms    GB/s    copy    exp  of floor");
      titled = true;
      std::cout << cell(-28, name_of_row(r)) << cell(-6, name_of(r.dtype)) << cell(-28, r.shape);
      if (r.unchecked) {
        std::cout << "  unchecked without a GPU\n";
        continue;
      }
      if (!r.error.empty()) {
        std::cout << "  not measured: " << r.error << "\n";
        continue;
      }
      std::cout << cell(10, 3, 1e3 * r.seconds);
      if (matrix)
        std::cout << cell(9, 0, r.flops / r.seconds / 1e9) << cell(13, 0, r.matrix_rate / 1e9);
      else
        std::cout << cell(8, 1, r.bytes / r.seconds / 1e9) << cell(8, 1, r.bytes / r.copy_seconds / 1e9)
                  << (r.exp_seconds > 0 ? cell(7, 0, r.bytes / r.exp_seconds / 1e9) : cell(7, "-"));
      std::cout << cell(matrix ? 6 : 9, 0, r.percent) << "%";
      if (r.difference >= 0) std::cout << "  " << std::scientific << std::setprecision(1) << r.difference;
      std::cout << "\n";
    }
  }
}

KernelOptions kernel_options(const Options& o) {
  KernelOptions k;
  k.name = o.name;
  k.place = o.place(1);
  k.size = o.size == "tiny" ? BenchSize::tiny : BenchSize::usual;
  k.check = o.check;
  for (const KernelKind kind : {KernelKind::rows, KernelKind::attention, KernelKind::matmul})
    if (o.kind == name_of(kind)) k.kind = kind;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    if (o.dtype == name_of(dtype)) k.dtype = dtype;
  return k;
}

void bench_kernels_command(const Options& o) {
  const KernelOptions k = kernel_options(o);
  std::string path;
  const std::vector<KernelRow> rows = bench_kernels(k, [&](const std::vector<KernelRow>& so_far) {
    Json all = Json::array();
    for (const KernelRow& row : so_far) all.push_back(json_of(row, k.place.target));
    path = publish_rows(o, "kernels", all);
  });
  print_kernels(rows, o.check);
  std::cout << path << "\n";
  std::string failed;
  for (const KernelRow& r : rows)
    if (r.failed())
      failed += concat(failed.empty() ? "" : "; ", name_of_row(r), " ", name_of(r.dtype), " ", r.shape, ": ",
                       r.error.empty()
                           ? concat("differs from the CPU by ", r.difference, " of the norm, allowed are ", r.allowed)
                           : r.error);
  DEMAND(failed.empty(), "bench kernels: ", failed);
}

void bench_against_command(const Options& o) {
  const AgainstOptions a{kernel_options(o), o.target, o.against, o.pairs};
  const std::vector<AgainstRow> rows = bench_against(a, std::cout);
  std::cout << cell(-28, "kernel") << cell(-6, "dtype") << cell(-28, "shape") << "   this/ms  " << cell(-9, o.against)
            << "  ratio  95% interval\n";
  Json all = Json::array();
  for (const AgainstRow& r : rows) {
    const Ratio& ratio = r.ratio;
    std::cout << cell(-28, r.name) << cell(-6, r.dtype) << cell(-28, r.shape) << cell(10, 3, 1e3 * median(r.own))
              << cell(10, 3, 1e3 * median(r.other)) << cell(8, 3, ratio.median) << "  " << cell(5, 3, ratio.low)
              << " to " << cell(5, 3, ratio.high) << "  "
              << (!ratio.differs()   ? "no difference seen"
                  : ratio.median < 1 ? "faster"
                                     : "slower")
              << "\n";
    all.push_back({{"kernel", r.name},
                   {"dtype", r.dtype},
                   {"shape", r.shape},
                   {"seconds", r.own},
                   {"against_seconds", r.other},
                   {"ratio", ratio.median},
                   {"low", ratio.low},
                   {"high", ratio.high},
                   {"coverage", ratio.coverage},
                   {"differs", ratio.differs()}});
  }
  std::cout << "ratio: median of " << o.pairs << " pairs of processes, this build's time over that of " << o.against
            << ", run in turn; the interval is two of the pairs' ratios, by the sign test, and holds the median in "
            << cell(0, 1, 100 * rows.front().ratio.coverage) << "% of cases";
  if (rows.size() > 10) std::cout << ": of " << rows.size() << " rows without a difference some show one by chance";
  std::cout << "\n" << publish_rows(o, "against", all) << "\n";
}

void add_common(CLI::App* command, Options& o) {
  command->add_option("--out", o.output, "folder for the JSON files")->capture_default_str();
  command->add_option("--target", o.target, "auto, cpu, or a GPU architecture such as sm_90a")->capture_default_str();
  add_threads(command, o.threads);
}

void add_dtype(CLI::App* command, Options& o) {
  command->add_option("--dtype", o.dtype, "f32 or bf16; without it what is usual there")
      ->check(CLI::IsMember({"f32", "bf16"}));
}

void add_training(CLI::App* bench, const std::shared_ptr<Options>& o, char** arguments) {
  CLI::App* training = bench->add_subcommand("training", "whole training steps (also under mpirun)");
  add_common(training, *o);
  add_dtype(training, *o);
  std::vector<std::string> models{"gpt2", "llama"};
  for (const NamedSize& size : named_sizes()) models.push_back(size.name);
  training
      ->add_option("--model", o->model,
                   "gpt2 or llama: 512 wide, 8 layers; else a named size. Without it those two on a CPU, "
                   "qwen2.5-1.5b and llama2-7b on a GPU")
      ->check(CLI::Validator(
          [models](const std::string& name) {
            if (std::find(models.begin(), models.end(), name) != models.end()) return std::string();
            const std::string nearest = nearest_name(name, models);
            return concat("there is no model \"", name, "\"", nearest.empty() ? "" : "; did you mean " + nearest + "?");
          },
          "NAME"));
  training->add_option("--batch", o->batch, "sequences in a step")
      ->capture_default_str()
      ->check(whole_number(1, 1 << 20));
  training->add_option("--steps", o->steps, "timed steps; the median counts")
      ->capture_default_str()
      ->check(whole_number(1, 1'000'000));
  training->add_flag("--repro", o->repro,
                     "also with train.repro, whose bits do not depend on the layout: what it costs");
  training->add_option("--set", o->sets, "KEY=VALUE: a setting of the run; may be repeated")->allow_extra_args(false);
  training->callback([o, arguments] { bench_training_command(*o, arguments); });
}

void add_pipeline(CLI::App* bench, const std::shared_ptr<Options>& o) {
  CLI::App* pipeline = bench->add_subcommand(
      "pipeline", "each schedule on sleeping stages, one a rank (under mpirun): the bubble beside its formula");
  add_common(pipeline, *o);
  pipeline->add_option("--batch", o->batch, "micro-batches")->capture_default_str()->check(whole_number(1, 1 << 16));
  pipeline->add_option("--ms", o->milliseconds, "milliseconds of a forward, a backward and a weights step each")
      ->capture_default_str()
      ->check(whole_number(1, 10'000));
  pipeline->callback([o] { bench_pipeline_command(*o); });
}

void add_kernels(CLI::App* bench, const std::shared_ptr<Options>& o) {
  CLI::App* kernels = bench->add_subcommand(
      "kernels", "row-wise kernels against copy and exp, attention and products against the matrix rate");
  add_common(kernels, *o);
  add_dtype(kernels, *o);
  kernels->add_option("NAME", o->name, "those alone whose name or shape contains it; case, blanks and _ do not count");
  kernels->add_option("--kind", o->kind, "rows, attention or matmul; without it all")
      ->check(CLI::IsMember({"rows", "attention", "matmul"}));
  kernels->add_option("--size", o->size, "usual, or tiny: seconds in all, to see that it runs")
      ->capture_default_str()
      ->check(CLI::IsMember({"usual", "tiny"}));
  CLI::Option* check =
      kernels->add_flag("--check", o->check, "hold each kernel to the CPU's, and fail where it differs");
  CLI::Option* against =
      kernels->add_option("--against", o->against, "a revision of this repository: it is built, and both take turns")
          ->excludes(check);
  kernels->add_option("--pairs", o->pairs, "turns of each with --against")
      ->capture_default_str()
      ->check(whole_number(kFewestPairs, 1000))
      ->needs(against);
  kernels->callback([o] { o->against.empty() ? bench_kernels_command(*o) : bench_against_command(*o); });
}

} // namespace

void add_bench(CLI::App& app, char** arguments) {
  auto o = std::make_shared<Options>();
  CLI::App* bench = app.add_subcommand("bench", "measure: training steps, kernels; a table and JSON");
  bench->require_subcommand(1);
  add_common(bench, *o);
  add_training(bench, o, arguments);
  add_pipeline(bench, o);
  add_kernels(bench, o);
  add_compare(bench);
}

} // namespace triax
