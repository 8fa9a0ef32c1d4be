// The configuration of a run: plain values with defaults. Names, sentences and limits of all fields are written once,
// in `settings(RunConfig&)`; reading, printing, `triax help config` and `--set` are loops over that list.
#pragma once
#include "comm/transport.h"
#include "model/config.h"
#include "model/context_parallel.h"
#include "train/pipeline.h"
#include "train/settings.h"
#include <iosfwd>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace triax {

enum class DTypeChoice { automatic, f32, bf16 };
enum class ScheduleKind { cosine, wsd, constant };
/// Share of (lr - min_lr) that is left at u in 0..1 of the cooldown: 1 - u, sqrt(1 - u), 1 - sqrt(u) (arXiv
/// 2405.18392).
enum class Cooldown { linear, sqrt, one_minus_sqrt };
std::span<const char* const> names(DTypeChoice);
std::span<const char* const> names(ScheduleKind);
std::span<const char* const> names(Cooldown);

struct DataConfig {
  std::string folder;
  int64_t sequence = 1024; ///< [T] tokens
  int64_t seed = 1;
  bool shuffle = true;
  bool document_mask = true;
  bool operator==(const DataConfig&) const = default;
};

struct TrainConfig {
  int64_t steps = 1000;
  int64_t global_batch = 32; ///< sequences in a step, over all ranks
  int64_t micro_batch = 8;   ///< [B] sequences that a rank computes at a time
  int64_t seed = 1;
  DTypeChoice dtype = DTypeChoice::automatic;
  bool repro = false; ///< the same bits whatever dp, ZeRO stage and micro-batch
  bool operator==(const TrainConfig&) const = default;
};

struct OptimizerConfig {
  double lr = 3e-4;
  double min_lr = 3e-5;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0; ///< 0 clips nothing
  bool stochastic_rounding = false;
  ScheduleKind schedule = ScheduleKind::cosine;
  int64_t warmup_steps = 100;
  int64_t cooldown_steps = 200; ///< wsd alone
  Cooldown cooldown = Cooldown::one_minus_sqrt;
  bool operator==(const OptimizerConfig&) const = default;
};

struct EvaluateConfig {
  int64_t every = 250;   ///< steps; 0: only at the end
  int64_t samples = 256; ///< sequences; 0: all held-out ones
  bool operator==(const EvaluateConfig&) const = default;
};

struct CheckpointConfig {
  int64_t every = 1000;        ///< steps; 0: only at the end
  int64_t keep = 2;            ///< newest ones kept; 0: all
  std::string resume = "auto"; ///< auto, never, or a checkpoint's folder
  std::string initial;         ///< Hugging Face folder whose weights a fresh run starts from; empty: random
  bool operator==(const CheckpointConfig&) const = default;
};

struct RunFolderConfig {
  std::string folder = "runs/run";
  int64_t log_every = 1; ///< steps
  bool operator==(const RunFolderConfig&) const = default;
};

/// Sizes of the mesh's axes; their product is the number of ranks.
struct MeshConfig {
  int64_t pod = 1, pp = 1, dp = 1, cp = 1, tp = 1;
  std::string order = "pod,pp,dp,cp,tp"; ///< outermost first
  bool operator==(const MeshConfig&) const = default;
};

/// How the stages of mesh.pp share layers and micro-batches.
struct PipelineConfig {
  PipelineKind schedule = PipelineKind::one_f_one_b;
  int64_t chunks = 1; ///< of layers a stage
  std::string layout; ///< layers of every chunk, in the order of the model; empty: as even as can be
  bool operator==(const PipelineConfig&) const = default;
};

/// How the ranks of mesh.cp share the positions of a sequence.
struct ContextConfig {
  ContextExchange exchange = ContextExchange::ring;
  bool operator==(const ContextConfig&) const = default;
};

/// What the ranks of dp cut among them (Rajbhandari et al. 2020).
struct ZeroConfig {
  int64_t stage = 0; ///< 1: the optimizer's state, 2: and gradients, 3: and weights
  int64_t group = 0; ///< neighbours in dp that share one copy of it; 0: all
  bool operator==(const ZeroConfig&) const = default;
};

struct CommConfig {
  TransportChoice transport = TransportChoice::automatic;
  int64_t timeout = 600;     ///< seconds that a rank waits for others; 0: for ever
  bool overlap = true;       ///< false: computing waits for every exchange of gradients and weights
  int64_t tensor_chunks = 1; ///< parts of a tensor-parallel exchange, each under way while others are multiplied
  bool operator==(const CommConfig&) const = default;
};

/// For each of operation_families(): kAutomatic where there is a favourite, else kReference (see kernels/choice.h).
std::map<std::string, std::string> default_kernels();

struct RunConfig {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  EvaluateConfig evaluate;
  CheckpointConfig checkpoint;
  RunFolderConfig run;
  MeshConfig mesh;
  PipelineConfig pipeline;
  ContextConfig context;
  ZeroConfig zero;
  CommConfig comm;
  std::map<std::string, std::string> kernels = default_kernels(); ///< by family, see kernels/op.h
  std::string matmul_algorithms; ///< a file of another run's; empty: what the run's own folder has
  int64_t threads = 0;           ///< of one rank; 0: the cores that the rank may use
  /// "train.steps" -> where its value came from ("run.json", "--set", "llama3-8b", "derived: ..."), for every value
  /// that is not the default. Not part of what is compared or written.
  std::map<std::string, std::string> origin;
  std::vector<std::string> notes; ///< sentences to print, from reading a Hugging Face `config.json`
};

bool operator==(const RunConfig& a, const RunConfig& b); ///< all values, not origin and notes

constexpr int64_t kMostRanks = 1'000'000; ///< of a mesh
/// In `repro` the global batch is summed in so many lanes, whoever computes them; ranks of dp share them evenly.
constexpr int64_t kLanes = 8;
/// Sequences that a rank computes at a time: one in `repro`, else train.micro_batch.
int64_t micro_batch(const RunConfig& config);
MeshShape mesh_shape(const RunConfig& config);

/// The one list of all fields, their members bound to `config`.
std::vector<Setting> settings(RunConfig& config);

/// Reads the file (comments allowed), then the `a.b=c` of `sets` (the last of two wins), fills what was not given from
/// what was (see `triax help config`), and validates. An empty `path` reads no file. `model` is a named size,
/// "hf:FOLDER" (its architecture; weights are `checkpoint.initial`), or an object of fields, with "base" for either of
/// these. With `ranks` > 0 the mesh must hold that many, and mesh.dp becomes it when not given. Paths in the
/// file are relative to the working directory.
RunConfig load_config(const std::string& path, const std::vector<std::string>& sets, int64_t ranks = 0);

/// Threads of one rank beyond which this machine refuses: four for each of its cores.
int64_t most_threads();

/// Makes the implementations that `config.kernels` names those of this process. Throws where one is not there.
void choose_kernels(const RunConfig& config);

/// What no run can be: limits of single fields, then fields against each other, with the arithmetic in the sentence.
void validate(const RunConfig& config);
/// Of those, what the axes must be; with `ranks` > 0, that they hold so many.
void validate_mesh(const RunConfig& config, int64_t ranks);

/// All fields, resolved: load_config of it gives the same values, with no other file.
nlohmann::ordered_json to_json(const RunConfig& config);

/// `triax help config`: every field with type, default, limits and sentence.
void print_help(std::ostream& out);

/// For `triax plan`: each value that is not the default, and where it came from.
void print_origins(const RunConfig& config, std::ostream& out);

} // namespace triax
