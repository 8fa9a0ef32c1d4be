#include "train/checkpoint.h"
#include "data/split_info.h"
#include "data/tokenizer.h"
#include "model/huggingface.h"
#include "model/planted.h"
#include "train/json_file.h"
#include "train/weights.h"
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

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

/// The writer is rank 0's; the others only give what they own.
void write_tensors(Publication* out, Transport& transport, Trainer& t, const char* stem,
                   const std::vector<std::pair<std::string, Tensor>>& buffers) {
  std::vector<TensorHeader> headers;
  for (const auto& [prefix, buffer] : buffers)
    for (TensorHeader& h : stored_tensors(t.table(), prefix, buffer.dtype)) headers.push_back(std::move(h));
  std::optional<SafetensorsWriter> writer;
  if (out) writer.emplace(*out, stem, headers);
  for (const auto& [prefix, buffer] : buffers)
    store(writer ? &*writer : nullptr, transport, t.device(), t.layout(), buffer, t.is_first_owner());
  if (writer) writer->close();
}

/// The newest `keep` by step remain, and always `saved`.
void drop_old(const std::string& folder, const std::string& saved, int64_t keep) {
  auto steps = step_folders(folder);
  if (keep == 0) return;
  for (auto at = steps.begin(); int64_t(steps.size()) > keep && at != steps.end();) {
    const bool just_saved = fs::path(at->second).filename() == fs::path(saved).filename();
    if (!just_saved) fs::remove_all(at->second);
    at = just_saved ? at + 1 : steps.erase(at);
  }
}

/// What the sample numbers count in: with another one of these, `samples` means something else.
nlohmann::ordered_json data_identity(const RunConfig& c) {
  return {{"content", split_info(c.data.folder, "train").identity},
          {"sequence", c.data.sequence},
          {"seed", c.data.seed},
          {"shuffle", c.data.shuffle}};
}

/// Two models of which one's files serve the other: what only training or length of context knows may differ.
bool same_network(ModelConfig a, const ModelConfig& b) {
  a.context = b.context;
  a.init_std = b.init_std;
  return a == b;
}

/// All but the tensors.
void write_description(Publication& out, const Trainer& t, const RunConfig& config, const RunState& state,
                       const std::string& tokenizer_folder) {
  int64_t end_of_text = -1;
  if (!tokenizer_folder.empty()) {
    for (const char* name : kTokenizerFiles)
      if (const auto source = fs::path(tokenizer_folder) / name; fs::exists(source)) out.copy(name, source.string());
    if (const auto id = Tokenizer::load(tokenizer_folder).end_of_text()) end_of_text = *id;
  }
  out.write_text("config.json",
                 to_huggingface(config.model, t.dtype() == Dtype::bf16 ? "bfloat16" : "float32", end_of_text).dump(2) +
                     "\n");
  const nlohmann::ordered_json run{{"step", state.step},
                                   {"samples", state.samples},
                                   {"dtype", name_of(t.dtype())},
                                   {"data", data_identity(config)},
                                   {"config", to_json(config)}};
  out.write_text(kState, run.dump(2) + "\n");
}

} // namespace

std::string save_checkpoint(const std::string& folder, Transport& transport, Trainer& t, const RunConfig& config,
                            const RunState& state, const std::string& tokenizer_folder) {
  const std::string path = (fs::path(folder) / step_name(state.step)).string();
  std::optional<Publication> out;
  std::optional<Transport::LongWork> long_work; // a slow disk is no reason to end the run
  if (transport.rank() == 0) {
    long_work.emplace(transport, "saving a checkpoint");
    planted_slow_save();
    out.emplace(path, bytes_needed(t));
    write_description(*out, t, config, state, tokenizer_folder);
  }
  write_tensors(out ? &*out : nullptr, transport, t, "model", {{"", t.weights()}});
  write_tensors(out ? &*out : nullptr, transport, t, "optimizer", optimizer_buffers(t));
  if (out) {
    out->publish();
    drop_old(folder, path, config.checkpoint.keep);
  }
  return path;
}

RunState load_checkpoint(const std::string& checkpoint, Trainer& t, const RunConfig& config) {
  DEMAND(fs::is_directory(checkpoint), "checkpoint.resume: there is no folder ", checkpoint);
  const std::string state_path = (fs::path(checkpoint) / kState).string();
  DEMAND(fs::exists(state_path), checkpoint, " is no checkpoint of triax: ", kState,
         " is missing; to start from weights alone, set checkpoint.initial instead of checkpoint.resume");
  const std::string damage = check_published(checkpoint, true);
  DEMAND(damage.empty(), damage, "; remove that checkpoint to go on from the one before");
  const nlohmann::json run = read_json_file(state_path);
  const nlohmann::json now = to_json(config), then = run.at("config");
  DEMAND(now.at("model") == then.at("model"), checkpoint,
         " holds another model than this run's; give the same model, or another run.folder");
  DEMAND(run.at("dtype") == name_of(t.dtype()), checkpoint, " was trained in ", run.at("dtype").get<std::string>(),
         ", this run in ", name_of(t.dtype()), "; set train.dtype to go on as before");
  const nlohmann::json identity = data_identity(config);
  for (const auto& [key, value] : identity.items())
    DEMAND(run.at("data").at(key) == value, checkpoint, " has consumed ", run.at("samples").get<int64_t>(),
           " samples of other data: ",
           key == "content" ? std::string("the shards of data.folder differ")
                            : concat("data.", key, " was ", run.at("data").at(key).dump(), " and is ", value.dump()),
           "; go on with the same data, or start another run from its weights with checkpoint.initial");
  restore(SafetensorsFolder(checkpoint), "", t.device(), t.layout(), t.weights());
  const SafetensorsFolder optimizer(checkpoint, "optimizer");
  for (const auto& [prefix, buffer] : optimizer_buffers(t)) restore(optimizer, prefix, t.device(), t.layout(), buffer);
  return {run.at("step").get<int64_t>(), run.at("samples").get<int64_t>()};
}

void load_weights(const std::string& folder, Trainer& t, const ModelConfig& model) {
  const std::string path = (fs::path(folder) / "config.json").string();
  DEMAND(fs::exists(path), "checkpoint.initial: ", path, " is missing; give a Hugging Face folder");
  DEMAND(same_network(from_huggingface(read_json_file(path), path).model, model), "checkpoint.initial: ", path,
         " describes another model than this run's; set \"model\": \"hf:", folder, "\" to take it from there");
  const SafetensorsFolder files(folder);
  for (const std::string& note : files.notes()) std::cerr << note << "\n";
  restore(files, "", t.device(), t.layout(), t.weights());
  if (!t.master().empty()) restore(files, "", t.device(), t.layout(), t.master());
}

} // namespace triax
