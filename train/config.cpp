#include "train/config.h"
#include "kernels/choice.h"
#include "model/huggingface.h"
#include "model/params.h"
#include "model/sizes.h"
#include "train/json_file.h"
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <unistd.h>

namespace triax {

using json = nlohmann::json;

std::span<const char* const> names(DTypeChoice) {
  static constexpr const char* kNames[] = {"auto", "f32", "bf16"};
  return kNames;
}

std::span<const char* const> names(ScheduleKind) {
  static constexpr const char* kNames[] = {"cosine", "wsd", "constant"};
  return kNames;
}

std::span<const char* const> names(Cooldown) {
  static constexpr const char* kNames[] = {"linear", "sqrt", "1-sqrt"};
  return kNames;
}

bool operator==(const RunConfig& a, const RunConfig& b) {
  return a.model == b.model && a.data == b.data && a.train == b.train && a.optimizer == b.optimizer &&
         a.evaluate == b.evaluate && a.checkpoint == b.checkpoint && a.run == b.run && a.mesh == b.mesh &&
         a.pipeline == b.pipeline && a.context == b.context && a.zero == b.zero && a.comm == b.comm &&
         a.kernels == b.kernels && a.matmul_algorithms == b.matmul_algorithms && a.threads == b.threads;
}

namespace {

using Texts = std::map<std::string, std::string>;

/// What was given, on the way to a RunConfig.
struct Source {
  std::string path;
  json document = json::object();
  Texts texts;
  std::string base; ///< name or hf:FOLDER; empty: the model is given by its fields
};

/// Takes "model": NAME and "base" out of document and texts, so that both hold fields alone. `--set model=NAME` sets
/// the file's whole model aside.
void take_base(Source& source) {
  if (source.document.contains("model")) {
    json& model = source.document["model"];
    if (model.is_string()) model = {{"base", model}};
    DEMAND(model.is_object(), source.path, ": model is ", shown(model),
           ", but must be a named size, \"hf:FOLDER\", or an object of fields");
    if (model.contains("base")) {
      DEMAND(model["base"].is_string(), source.path, ": model.base is ", shown(model["base"]),
             ", but must be a named size or \"hf:FOLDER\"");
      source.base = model["base"].get<std::string>();
      DEMAND(!source.base.empty(), source.path, ": model is \"\", but must be a named size or \"hf:FOLDER\"");
      model.erase("base");
    }
  }
  for (const char* key : {"model", "model.base"}) {
    const auto found = source.texts.find(key);
    if (found == source.texts.end()) continue;
    DEMAND(!found->second.empty(), "--set: ", key, " is \"\", but must be a named size or hf:FOLDER");
    if (std::string(key) == "model") source.document.erase("model");
    source.base = found->second;
    source.texts.erase(found);
  }
}

/// RMSNorm and LayerNorm are one operation, "norm"; one of its names may be given in the file, and one in --set.
void take_norm_names(Source& source) {
  const auto demand_one = [](const std::string& place, const auto& given) {
    int names = 0;
    for (const char* name : {"norm", "rmsnorm", "layernorm"}) names += given(name);
    DEMAND(names <= 1, place,
           ": kernels.norm, kernels.rmsnorm and kernels.layernorm are one operation; give one of them");
  };
  demand_one(source.path, [&](const char* name) {
    return source.document.contains("kernels") && source.document["kernels"].is_object() &&
           source.document["kernels"].contains(name);
  });
  demand_one("--set", [&](const char* name) { return source.texts.count(concat("kernels.", name)) > 0; });
  for (const std::string name : {"rmsnorm", "layernorm"}) {
    if (source.document.contains("kernels") && source.document["kernels"].is_object())
      if (json& kernels = source.document["kernels"]; kernels.contains(name)) {
        kernels["norm"] = kernels[name];
        kernels.erase(name);
      }
    if (const auto found = source.texts.find("kernels." + name); found != source.texts.end()) {
      source.texts["kernels.norm"] = found->second;
      source.texts.erase(found);
    }
  }
}

/// A model given by fields starts from what its family fixes. A wrong family is left for `read_settings` to refuse.
ModelConfig start_of_fields(const Source& source) {
  std::string family;
  if (source.document.contains("model") && source.document["model"].contains("family")) {
    const json& given = source.document["model"]["family"];
    if (given.is_string()) family = given.get<std::string>();
  }
  if (const auto found = source.texts.find("model.family"); found != source.texts.end()) family = found->second;
  return family_defaults(family == "gpt2" ? Family::gpt2 : Family::llama);
}

void start_model(const Source& source, RunConfig& config) {
  if (source.base.empty()) {
    config.model = start_of_fields(source);
  } else if (source.base.rfind("hf:", 0) == 0) {
    const std::string path = (std::filesystem::path(source.base.substr(3)) / "config.json").string();
    HuggingFaceModel read = from_huggingface(read_json_file(path), path);
    config.model = read.model;
    config.notes = read.notes;
  } else {
    config.model = named_size(source.base);
  }
}

/// Fills what was not given from what was, and says so.
class Derivation {
public:
  Derivation(RunConfig& config, const Source& source, const Origins& given, const ModelConfig& base)
      : c_(config), source_(source), given_(given), base_kv_equals_heads_(base.kv_heads == base.heads) {}

  void model() {
    ModelConfig& m = c_.model;
    const bool fields = source_.base.empty();
    if (!given("model.kv_heads") && given("model.heads") && (fields || base_kv_equals_heads_))
      set("model.kv_heads", m.kv_heads, m.heads, "as many as model.heads");
    if (!given("model.head_width") && (given("model.width") || given("model.heads")) && m.heads > 0) {
      DEMAND(m.width % m.heads == 0, "model.width is ", m.width, " and model.heads is ", m.heads, ": ", m.width,
             " is no multiple of ", m.heads, "; change one of them, or give model.head_width");
      set("model.head_width", m.head_width, m.width / m.heads, "model.width / model.heads");
    }
    if (!given("model.mlp") && fields && m.width > 0 && m.width <= (1 << 20)) {
      const bool gated = m.activation == Activation::swiglu;
      set("model.mlp", m.mlp, gated ? (8 * m.width / 3 + 63) / 64 * 64 : 4 * m.width,
          gated ? "8/3 of model.width, up to a multiple of 64" : "4 times model.width");
    }
    if (m.rope.kind == RopeKind::yarn && !given("model.rope.attention_factor") &&
        (given("model.rope.kind") || given("model.rope.factor")))
      set("model.rope.attention_factor", m.rope.attention_factor, yarn_attention_factor(m.rope.factor),
          "0.1 ln(model.rope.factor) + 1");
  }

  void batch(int64_t ranks) {
    const int64_t others = c_.mesh.pod * c_.mesh.pp * c_.mesh.cp * c_.mesh.tp;
    if (ranks > 0 && !given("mesh.dp") && others > 0 && ranks % others == 0)
      set("mesh.dp", c_.mesh.dp, ranks / others, "the ranks that were started, over the other axes");
    const int64_t share = c_.train.global_batch / c_.mesh.dp;
    if (given("train.micro_batch") || share < 1) return;
    int64_t micro = std::min(share, TrainConfig{}.micro_batch);
    while (share % micro != 0) --micro;
    set("train.micro_batch", c_.train.micro_batch, micro,
        "the largest divisor of a rank's sequences up to the default");
  }

  void rest() {
    OptimizerConfig& o = c_.optimizer;
    const int64_t steps = c_.train.steps;
    if (!given("data.sequence") && c_.model.context > 0 && c_.model.context < c_.data.sequence)
      set("data.sequence", c_.data.sequence, c_.model.context, "model.context");
    if (!given("optimizer.min_lr") && given("optimizer.lr"))
      set("optimizer.min_lr", o.min_lr, o.lr / 10, "a tenth of optimizer.lr");
    if (!given("optimizer.warmup_steps"))
      set("optimizer.warmup_steps", o.warmup_steps, std::min(o.warmup_steps, steps / 10), "a tenth of train.steps");
    if (!given("optimizer.cooldown_steps") && o.schedule == ScheduleKind::wsd)
      set("optimizer.cooldown_steps", o.cooldown_steps,
          std::max<int64_t>(0, std::min(steps / 5, steps - o.warmup_steps)),
          "a fifth of train.steps, or what warm-up leaves");
    const std::string name = std::filesystem::path(source_.path).stem().string();
    if (!given("run.folder") && !name.empty())
      set("run.folder", c_.run.folder, "runs/" + name, "the configuration's name");
  }

private:
  bool given(const std::string& key) const { return given_.count(key) > 0; }
  template <class T> void set(const char* key, T& member, const T& value, const char* reason) {
    if (member == value) return;
    member = value;
    c_.origin[key] = concat("derived: ", reason);
  }

  RunConfig& c_;
  const Source& source_;
  const Origins& given_;
  const bool base_kv_equals_heads_;
};

bool in_model(const std::string& key) { return key.rfind("model.", 0) == 0; }

void validate_threads(const RunConfig& c) {
  DEMAND(c.threads <= most_threads(), "threads is ", c.threads, ", but must not exceed ", most_threads(),
         ", four for each core of this machine; leave it out to use the cores that a rank may use");
}

} // namespace

std::map<std::string, std::string> default_kernels() {
  std::map<std::string, std::string> kernels;
  for (const std::string& family : operation_families())
    kernels[family] = has_favourite(family) ? kAutomatic : kReference;
  return kernels;
}

void choose_kernels(const RunConfig& config) {
  for (const auto& [family, name] : config.kernels) choose_implementation(family, name);
}

int64_t micro_batch(const RunConfig& config) { return config.train.repro ? 1 : config.train.micro_batch; }

MeshShape mesh_shape(const RunConfig& c) {
  const bool cut = c.zero.stage > 0;
  return {int(c.mesh.pod),
          int(c.mesh.pp),
          int(c.mesh.dp),
          int(c.mesh.cp),
          int(c.mesh.tp),
          cut ? int(c.zero.group) : 1,
          kv_copies(c.model, int(c.mesh.tp)),
          c.mesh.order};
}

int64_t most_threads() { return 4 * std::max<int64_t>(1, sysconf(_SC_NPROCESSORS_ONLN)); }

RunConfig load_config(const std::string& path, const std::vector<std::string>& sets, int64_t ranks) {
  Source source;
  source.path = path;
  source.texts = parse_sets(sets);
  if (!path.empty()) source.document = read_json_file(path, Comments::allowed);
  DEMAND(source.document.is_object(), path, ": holds ", source.document.type_name(),
         ", but must be an object of settings");
  take_base(source);
  take_norm_names(source);

  RunConfig config;
  start_model(source, config);
  const ModelConfig base = config.model;
  const std::vector<Setting> list = settings(config);
  Origins given;
  read_settings(list, source.document, path, given);
  read_settings(list, source.texts, given);
  config.origin = given;
  for (const Setting& setting : list) // where `given` has an entry, it stays
    if (!source.base.empty() && in_model(setting.key)) config.origin.emplace(setting.key, source.base);
  DEMAND(std::any_of(config.origin.begin(), config.origin.end(), [](auto& o) { return in_model(o.first); }),
         path.empty() ? "--set" : path, ": model is not given: name a size (\"model\": \"gpt2\"), a Hugging ",
         "Face folder (\"model\": \"hf:FOLDER\"), or give an object of its fields");
  try {
    Derivation derivation(config, source, given, base);
    derivation.model();
    derivation.batch(ranks);
    derivation.rest();
    validate_mesh(config, ranks);
    validate(config);
    if (ranks > 0) validate_threads(config); // it is this machine that will run
  } catch (const Error& error) {
    fail(path.empty() ? error.what() : path + ": " + error.what());
  }
  RunConfig plain;
  const std::vector<Setting> defaults = settings(plain);
  for (size_t i = 0; i < list.size(); ++i)
    if (value_text(list[i]) == value_text(defaults[i])) config.origin.erase(list[i].key);
  return config;
}

nlohmann::ordered_json to_json(const RunConfig& config) {
  RunConfig copy = config;
  return settings_json(settings(copy));
}

void print_help(std::ostream& out) {
  out << "A run is one JSON file; comments are allowed. `triax train run.json --set train.steps=100` overrides.\n"
         "\"model\" is the name of a size, \"hf:FOLDER\", or an object of the fields below with such a \"base\".\n"
         "Sizes:";
  for (const NamedSize& size : named_sizes()) out << ' ' << size.name;
  out << "\n\n";
  RunConfig defaults;
  for (const Setting& setting : settings(defaults)) {
    const std::string value = value_text(setting), limits = limits_text(setting.limits);
    out << setting.key << " = " << (value.empty() ? "\"\"" : value) << "   (" << type_text(setting)
        << (limits.empty() ? "" : ", " + limits) << ")\n    " << setting.sentence << '\n';
  }
}

void print_origins(const RunConfig& config, std::ostream& out) {
  RunConfig copy = config;
  size_t width = 0;
  const std::vector<Setting> list = settings(copy);
  const auto text = [](const Setting& setting) { return setting.key + " = " + value_text(setting); };
  for (const Setting& setting : list)
    if (config.origin.count(setting.key)) width = std::max(width, text(setting).size());
  for (const Setting& setting : list)
    if (const auto found = config.origin.find(setting.key); found != config.origin.end())
      out << text(setting) << std::string(width + 2 - text(setting).size(), ' ') << found->second << '\n';
}

} // namespace triax
