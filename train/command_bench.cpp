// triax bench: a table for people and JSON for programs. Every speed stands beside what the machine could do, measured
// in the same run.
#include "kernels/matmul.h"
#include "train/bench_kernels.h"
#include "train/bench_training.h"
#include "train/commands.h"
#include "train/log.h"
#include "train/machine.h"
#include "train/publish.h"
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

namespace triax {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string output = "runs/bench", model, dtype;
  int64_t threads = 0, batch = 8;
  int steps = 3;
};

void write_rows(const Options& o, const std::string& name, const Json& rows) {
  make_folder("--out", o.output);
  const std::string path = (std::filesystem::path(o.output) / (name + ".json")).string();
  publish_text(path, rows.dump(2) + "\n");
  std::cout << path << "\n";
}

void bench_training_command(const Options& o, char** arguments) {
  const Launch launch = Launch::detect();
  const int local = announced_local_size(), threads = choose_threads(o.threads, local);
  wait_passively_if_crowded(arguments, threads, local);
  Transport& transport = Transport::join(launch);
  const bool first = transport.rank() == 0;
  const int64_t ranks = transport.size(), batch = (o.batch + ranks - 1) / ranks * ranks;
  if (first && batch != o.batch)
    std::cout << "a batch of " << batch << " instead of " << o.batch << ", so that " << ranks << " ranks share it\n";
  if (first) std::cout << "model  dtype  ranks x threads  tokens/s  GFLOP/s  of matrix rate  MFU     start\n";
  Json rows = Json::array();
  for (const std::string model : {"gpt2", "llama"})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      if ((dtype == Dtype::bf16 && !cpu_has_bf16()) || (!o.model.empty() && o.model != model) ||
          (!o.dtype.empty() && o.dtype != name_of(dtype)))
        continue;
      const TrainingRow r = bench_training(transport, model, dtype, threads, batch, o.steps);
      if (!first) continue;
      std::cout << std::left << std::setw(7) << r.model << std::setw(7) << name_of(r.dtype) << std::setw(17)
                << concat(r.ranks, " x ", r.threads) << std::right << std::fixed << std::setprecision(0) << std::setw(8)
                << r.tokens_per_second << std::setw(9) << r.tokens_per_second * r.flops_per_token / 1e9 << std::setw(16)
                << r.matrix_rate / 1e9 << std::setprecision(1) << std::setw(6) << 100 * r.mfu << "%" << std::setw(7)
                << r.start_seconds << " s" << std::endl;
      rows.push_back({{"model", r.model},
                      {"dtype", name_of(r.dtype)},
                      {"ranks", r.ranks},
                      {"threads", r.threads},
                      {"batch", r.batch},
                      {"sequence", r.sequence},
                      {"step_s", r.step_seconds},
                      {"tokens_per_s", r.tokens_per_second},
                      {"flops_per_token", r.flops_per_token},
                      {"matrix_rate", r.matrix_rate},
                      {"mfu", r.mfu},
                      {"start_s", r.start_seconds}});
    }
  if (first) write_rows(o, concat("training-", transport.size(), "x", threads), rows);
}

void bench_kernels_command(const Options& o) {
  std::cout << "kernel                dtype  shape               GB/s   copy    exp    of floor\n";
  Json rows = Json::array();
  for (const KernelRow& r : bench_kernels(choose_threads(o.threads, 1))) {
    std::cout << std::left << std::setw(22) << r.name << std::setw(7) << name_of(r.dtype) << std::setw(18) << r.shape
              << std::right << std::fixed << std::setprecision(1) << std::setw(7) << r.bytes / r.seconds / 1e9
              << std::setw(7) << r.bytes / r.copy_seconds / 1e9 << std::setw(7)
              << (r.exp_seconds > 0 ? concat(std::lround(r.bytes / r.exp_seconds / 1e9)) : "-") << std::setprecision(0)
              << std::setw(10) << r.percent << "%\n";
    rows.push_back({{"kernel", r.name},
                    {"dtype", name_of(r.dtype)},
                    {"shape", r.shape},
                    {"bytes", r.bytes},
                    {"seconds", r.seconds},
                    {"copy_s", r.copy_seconds},
                    {"exp_s", r.exp_seconds},
                    {"floor_s", r.floor_seconds},
                    {"percent", r.percent}});
  }
  write_rows(o, "kernels", rows);
}

} // namespace

void add_bench(CLI::App& app, char** arguments) {
  auto o = std::make_shared<Options>();
  CLI::App* bench = app.add_subcommand("bench", "measure: training steps, kernels; a table and JSON");
  bench->require_subcommand(1);
  bench->add_option("--out", o->output, "folder for the JSON files")->capture_default_str();
  add_threads(bench, o->threads);
  CLI::App* training = bench->add_subcommand("training", "whole training steps (also under mpirun)");
  training->add_option("--model", o->model, "gpt2 or llama; without it both")->check(CLI::IsMember({"gpt2", "llama"}));
  training->add_option("--dtype", o->dtype, "f32 or bf16; without it both")->check(CLI::IsMember({"f32", "bf16"}));
  training->add_option("--batch", o->batch, "sequences in a step")
      ->capture_default_str()
      ->check(whole_number(1, 1 << 20));
  training->add_option("--steps", o->steps, "timed steps; the median counts")
      ->capture_default_str()
      ->check(whole_number(1, 1'000'000));
  training->callback([o, arguments] { bench_training_command(*o, arguments); });
  bench->add_subcommand("kernels", "row-wise kernels against copy and exp")->callback([o] {
    bench_kernels_command(*o);
  });
}

} // namespace triax
