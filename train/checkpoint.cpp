#include "train/checkpoint.h"
#include "data/tokenizer.h"
#include "kernels/elementwise.h"
#include "model/huggingface.h"
#include "train/json_file.h"
#include "train/weights.h"
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

namespace triax {
namespace {

namespace fs = std::filesystem;
constexpr const char* kState = "run_state.json";
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer_config.json"};

/// The optimizer's buffers under the prefixes of their tensors.
std::vector<std::pair<std::string, Tensor>> optimizer_buffers(const Trainer& t) {
  std::vector<std::pair<std::string, Tensor>> buffers{{"moment1.", t.moment1()}, {"moment2.", t.moment2()}};
  if (!t.master().empty()) buffers.emplace_back("master.", t.master());
  return buffers;
}

int64_t bytes_needed(const Trainer& t) {
  int64_t bytes = t.table().count() * bytes_of(t.dtype());
  for (const auto& buffer : optimizer_buffers(t)) bytes += t.table().count() * bytes_of(buffer.second.dtype);
  return bytes + (1 << 20);
}

void write_model(Publication& out, Trainer& t) {
  SafetensorsWriter writer(out, "model", stored_tensors(t.table(), "", t.dtype()));
  store(writer, t.device(), t.table(), t.weights());
  writer.close();
}

void write_optimizer(Publication& out, Trainer& t) {
  std::vector<TensorHeader> headers;
  for (const auto& [prefix, buffer] : optimizer_buffers(t))
    for (TensorHeader& h : stored_tensors(t.table(), prefix, buffer.dtype)) headers.push_back(std::move(h));
  SafetensorsWriter writer(out, "optimizer", headers);
  for (const auto& [prefix, buffer] : optimizer_buffers(t)) store(writer, t.device(), t.table(), buffer);
  writer.close();
}

void drop_old(const std::string& folder, int64_t keep) {
  if (keep == 0) return;
  auto steps = step_folders(folder);
  for (; int64_t(steps.size()) > keep; steps.erase(steps.begin())) fs::remove_all(steps.front().second);
}

} // namespace

std::string save_checkpoint(const std::string& folder, Trainer& t, const RunConfig& config, const RunState& state,
                            const std::string& tokenizer_folder) {
  const std::string path = (fs::path(folder) / step_name(state.step)).string();
  Publication out(path, bytes_needed(t));
  int64_t end_of_text = -1;
  if (!tokenizer_folder.empty()) {
    for (const char* name : kTokenizerFiles)
      if (const auto source = fs::path(tokenizer_folder) / name; fs::exists(source)) out.copy(name, source.string());
    if (const auto id = Tokenizer::load(tokenizer_folder).end_of_text()) end_of_text = *id;
  }
  out.write_text("config.json",
                 to_huggingface(config.model, t.dtype() == Dtype::bf16 ? "bfloat16" : "float32", end_of_text).dump(2) +
                     "\n");
  write_model(out, t);
  write_optimizer(out, t);
  const nlohmann::ordered_json run{
      {"step", state.step}, {"samples", state.samples}, {"dtype", name_of(t.dtype())}, {"config", to_json(config)}};
  out.write_text(kState, run.dump(2) + "\n");
  out.publish();
  drop_old(folder, config.checkpoint.keep);
  return path;
}

RunState load_checkpoint(const std::string& checkpoint, Trainer& t, const RunConfig& config) {
  const std::string state_path = (fs::path(checkpoint) / kState).string();
  DEMAND(fs::exists(state_path), checkpoint, " is no checkpoint of triax: ", kState,
         " is missing; to start from weights alone, set checkpoint.initial instead of checkpoint.resume");
  const nlohmann::json run = read_json_file(state_path);
  const nlohmann::json now = to_json(config), then = run.at("config");
  DEMAND(now.at("model") == then.at("model"), checkpoint,
         " holds another model than this run's; give the same model, or another run.folder");
  DEMAND(run.at("dtype") == name_of(t.dtype()), checkpoint, " was trained in ", run.at("dtype").get<std::string>(),
         ", this run in ", name_of(t.dtype()), "; set train.dtype to go on as before");
  restore(SafetensorsFolder(checkpoint), "", t.device(), t.table(), t.weights());
  const SafetensorsFolder optimizer(checkpoint, "optimizer");
  for (const auto& [prefix, buffer] : optimizer_buffers(t)) restore(optimizer, prefix, t.device(), t.table(), buffer);
  return {run.at("step").get<int64_t>(), run.at("samples").get<int64_t>()};
}

void load_weights(const std::string& folder, Trainer& t) {
  const SafetensorsFolder files(folder);
  for (const std::string& note : files.notes()) std::cerr << note << "\n";
  restore(files, "", t.device(), t.table(), t.weights());
  if (!t.master().empty()) restore(files, "", t.device(), t.table(), t.master());
}

} // namespace triax
