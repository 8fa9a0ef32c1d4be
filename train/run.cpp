#include "train/run.h"
#include "data/split_info.h"
#include "kernels/matmul.h"
#include "model/flops.h"
#include "train/algorithms_file.h"
#include "train/favourites.h"
#include "train/json_file.h"
#include "train/machine.h"
#include "train/memory_table.h"
#include "train/publish.h"
#include "train/schedule.h"
#include "train/wall.h"
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numbers>

namespace triax {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

DatasetOptions data_options(const RunConfig& c, const char* split) {
  DatasetOptions options;
  options.folder = c.data.folder;
  options.split = split;
  options.sequence = c.data.sequence;
  options.seed = uint64_t(c.data.seed);
  options.shuffle = c.data.shuffle && std::string(split) == "train";
  options.vocabulary = c.model.vocabulary;
  return options;
}

std::string number(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

RunConfig in_folder(RunConfig config, const std::string& folder) {
  if (!folder.empty()) config.run.folder = folder;
  return config;
}

} // namespace

Run::Run(const RunConfig& config, Transport& transport, const Target& target, const CaptureOptions& capture)
    : config_(in_folder(config, capture.folder)), capture_options_(capture), transport_(transport),
      mesh_(mesh_shape(config), transport.rank(), transport.size(), transport.hosts()), target_(target),
      threads_(choose_threads(config.threads, transport.local_size())),
      data_(Dataset::open(data_options(config, "train"))),
      plans_(make_plans(target_, threads_, mesh_, config, captures())),
      algorithms_note_(take_algorithms(transport,
                                       config.matmul_algorithms.empty() ? algorithms_path() : config.matmul_algorithms,
                                       !config.matmul_algorithms.empty())),
      device_(Device::open(target_, threads_)),
      trainer_((device_->follow(plan(), transport.local_size()), *device_), transport, mesh_, config,
               choose_dtype(config.train.dtype, target_), captures()),
      began_(Wall::now()) {
  const int64_t held_out = split_info(config.data.folder, "val").tokens;
  if (held_out > config.data.sequence)
    held_out_ = Dataset::open(data_options(config, "val"));
  else
    held_out_problem_ =
        concat(config.data.folder, " holds out ", held_out, " tokens, and a sequence needs ", config.data.sequence + 1);
  if (fs::exists(fs::path(config.data.folder) / "tokenizer.json")) {
    tokenizer_ = Tokenizer::load(config.data.folder);
    DEMAND(data_.tokenizer_hash() == 0 || tokenizer_->hash() == data_.tokenizer_hash(), config.data.folder,
           ": tokenizer.json is not the one that the shards were made with; put it back, or prepare the data again");
  }
  agree_on_plans();
}

Run::~Run() = default;

void Run::agree_on_plans() const {
  uint64_t hash = 0;
  for (const Plan& stage : plans_) hash = hash * 31 + stage.hash();
  const auto hashes = transport_.gather(hash);
  for (size_t r = 1; r < hashes.size(); ++r)
    ENSURE(hashes[r] == hashes[0], "rank ", r,
           " plans another step than rank 0; all ranks need the same binary, configuration and CPU kind");
}

void Run::announce() const {
  std::cout << "model  " << with_commas(double(trainer_.table().count())) << " parameters, "
            << name_of(trainer_.dtype()) << "; " << mesh_.describe() << ", " << threads_ << " threads a rank, "
            << target_.name << (target_ == Target{} ? concat(" ", host_level()) : std::string()) << "\n"
            << "data   " << with_commas(double(data_.tokens())) << " tokens, "
            << with_commas(double(data_.samples_per_epoch())) << " sequences of " << config_.data.sequence << "; "
            << number(double(config_.train.steps * config_.train.global_batch) / double(data_.samples_per_epoch()), 2)
            << " epochs\n";
  print_memory(plan(), std::cout);
  if (const int hosts = mesh_.hosts_of(kTensorAxes); hosts > 1)
    std::cout << "mesh   note: tensor-parallel groups span " << hosts
              << " hosts, and every layer waits for their link; mesh.tp should divide the ranks of a host\n";
  if (const std::string text = favourites_text(plan()); !text.empty()) std::cout << "kernel " << text << "\n";
  if (!algorithms_note_.empty()) std::cout << "note   " << algorithms_note_ << "\n";
  if (!held_out_) std::cout << "no evaluation: " << held_out_problem_ << "\n";
  std::cout << std::flush;
}

std::string Run::algorithms_path() const { return (fs::path(config_.run.folder) / kAlgorithmsName).string(); }

std::string Run::checkpoint_to_resume() const {
  std::string path;
  if (is_first()) { // one rank looks, so that all see the same
    const std::string& resume = config_.checkpoint.resume;
    const std::string folder = (fs::path(config_.run.folder) / "checkpoints").string();
    const Newest newest = newest_complete(folder);
    for (const std::string& note : newest.notes) std::cerr << note << "\n";
    if (resume == "auto") {
      path = newest.path.value_or("");
    } else {
      const bool newest_itself = newest.path && fs::exists(resume) && fs::equivalent(*newest.path, resume);
      DEMAND(!newest.path || newest_itself, config_.run.folder, " holds checkpoints up to step ", newest.step,
             ", which this run would mix with its own; choose another run.folder, remove that one, or set "
             "checkpoint.resume to auto");
      if (resume != "never") path = resume;
    }
  }
  transport_.broadcast(path, 0);
  return path;
}

void Run::load_weights_and_state() {
  const std::string checkpoint = checkpoint_to_resume(), &initial = config_.checkpoint.initial;
  const Transport::LongWork long_work(transport_, "loading weights"); // some ranks may be slower
  std::string origin = "random, from train.seed";
  if (!checkpoint.empty()) {
    state_ = load_checkpoint(checkpoint, trainer_, config_);
    origin = concat(checkpoint, ", at step ", state_.step);
  } else {
    trainer_.initialise();
    if (!initial.empty()) load_weights(initial, trainer_, config_.model);
    if (!initial.empty()) origin = initial;
  }
  if (is_first()) std::cout << "start  weights: " << origin << "\n";
}

void Run::start() {
  if (is_first()) announce();
  load_weights_and_state();
  if (is_first()) {
    lock_ = std::make_unique<FolderLock>(config_.run.folder);
    for (const fs::path& folder : {fs::path(config_.run.folder), fs::path(config_.run.folder) / "checkpoints"})
      if (fs::exists(folder)) clean_leftovers(folder.string());
    log_ = std::make_unique<RunLog>(config_.run.folder, state_.step);
    receipt_.emplace(config_, mesh_, transport_.local_size(), target_, threads_, trainer_.dtype());
    if (!finished())
      publish_text((fs::path(config_.run.folder) / "run.json").string(), to_json(config_).dump(2) + "\n");
  }
  if (captures()) capture_ = std::make_unique<CaptureFile>(capture_options_.folder, transport_.rank());
  measure_machine();
  prefetcher_ =
      std::make_unique<Prefetcher>([this](int64_t first, int64_t count) { return rows_of(data_.batch(first, count)); });
  ask_for_batches();
}

void Run::measure_machine() {
  if (target_ != Target{} || captures()) return;
  transport_.barrier();
  matrix_rate_ = std::max(matrix_rate_, transport_.sum(measure_matrix_rate(trainer_.dtype(), threads_)));
}

void Run::ask_for_batches() {
  const int64_t B = micro_batch(config_);
  const int64_t first = state_.samples + prefetcher_->pending() / trainer_.accumulation() * config_.train.global_batch +
                        trainer_.first_of_share();
  for (int64_t m = 0; m < trainer_.accumulation(); ++m) prefetcher_->ask(first + m * B, B);
}

void Run::fill(int64_t micro_batch, const Batch& batch) {
  const auto to = trainer_.inputs(micro_batch);
  std::copy(batch.tokens.begin(), batch.tokens.end(), to.tokens);
  std::copy(batch.labels.begin(), batch.labels.end(), to.labels);
  std::copy(batch.token_order.begin(), batch.token_order.end(), to.order);
  if (config_.data.document_mask)
    std::copy(batch.document_start.begin(), batch.document_start.end(), to.document_start);
  else
    std::fill_n(to.document_start, batch.document_start.size(), 0);
}

Batch Run::rows_of(Batch batch) const {
  if (mesh_.size(Axis::cp) == 1) return batch;
  return rows_at(batch, trainer_.positions(), trainer_.sees_whole_sequences());
}

void Run::load_batch() {
  step_began_ = Wall::now();
  ask_for_batches(); // the step after this one, while this one is computed
  for (int64_t m = 0; m < trainer_.accumulation(); ++m) fill(m, prefetcher_->take());
}

void Run::update_weights() {
  ++state_.step;
  state_.samples += config_.train.global_batch;
  const OptimizerConfig& o = config_.optimizer;
  StepState& s = trainer_.state();
  s.seed = uint64_t(config_.train.seed);
  s.step = state_.step;
  s.learning_rate = learning_rate(o, state_.step, config_.train.steps);
  s.moment1_scale = float(1 / (1 - std::pow(o.beta1, double(state_.step))));
  s.moment2_scale = float(1 / (1 - std::pow(o.beta2, double(state_.step))));
  try {
    trainer_.train();
  } catch (const Error& error) {
    fail(concat("step ", state_.step, ": ", error.what()));
  }
  std::copy_n(trainer_.scalars(), kStepScalars, scalars_.begin());
  if (capture_) capture_->write(trainer_);
}

double Run::mean_step_seconds() const {
  return steps_here_ > 1 ? training_seconds_ / double(steps_here_ - 1) : step_seconds_;
}

double Run::mean_loss() const {
  return scalars_[kTokenCount] > 0 ? double(scalars_[kLossSum]) / double(scalars_[kTokenCount]) : 0.0;
}

Json Run::speed(double seconds) const {
  const double tokens = double(config_.train.global_batch * config_.data.sequence) / seconds;
  const double flops = tokens * training_flops_per_token(config_.model, config_.data.sequence);
  return {{"tokens_per_s", tokens}, {"mfu", matrix_rate_ > 0 ? Json(flops / matrix_rate_) : Json(nullptr)}};
}

void Run::log_step() {
  step_seconds_ = seconds_since(step_began_);
  if (steps_here_ == 0 && !captures()) save_algorithms(transport_, algorithms_path());
  if (steps_here_++ > 0) training_seconds_ += step_seconds_; // the first one warms caches and libraries up
  const double loss = mean_loss();
  if (is_first()) {
    receipt_->step(state_.step, loss);
    if (due(config_.run.log_every) || finished() || !std::isfinite(loss)) {
      Json event{{"event", "step"},
                 {"step", state_.step},
                 {"samples", state_.samples},
                 {"loss", loss},
                 {"learning_rate", trainer_.state().learning_rate},
                 {"gradient_norm", std::sqrt(scalars_[kGradientNorm2])},
                 {"counted_tokens", scalars_[kTokenCount]},
                 {"step_s", step_seconds_}};
      event.update(speed(step_seconds_));
      log_->write(event);
    }
    log_->progress(progress_line(), finished());
    if (steps_here_ == 1)
      for (const std::string& sentence : trainer_.device().comparisons()) log_->say(sentence);
  }
  DEMAND(captures() || std::isfinite(loss), "the loss of step ", state_.step, " is ", loss,
         "; nothing of it was saved. The last checkpoint in ", config_.run.folder,
         " is whole: lower optimizer.lr or optimizer.clip and go on from it");
}

std::string Run::progress_line() const {
  const Json rate = speed(mean_step_seconds());
  const std::string share =
      rate["mfu"].is_null() ? "" : concat("  ", number(100 * rate["mfu"].get<double>(), 1), "% of the matrix peak");
  return concat("step ", state_.step, "/", config_.train.steps, "  loss ", number(mean_loss(), 4), "  ",
                with_commas(rate["tokens_per_s"].get<double>()), " tokens/s", share, "  ",
                duration(double(config_.train.steps - state_.step) * mean_step_seconds()), " left");
}

bool Run::evaluation_due() const { return held_out_ && !captures() && (due(config_.evaluate.every) || finished()); }

void Run::evaluate() {
  measure_machine(); // another sample: the best one counts, since the machine may be shared
  const int64_t B = micro_batch(config_), ranks = mesh_.size(kSampleAxes);
  const int64_t all = held_out_->samples_per_epoch();
  const int64_t samples = config_.evaluate.samples > 0 ? std::min(all, config_.evaluate.samples) : all;
  double nats = 0, tokens = 0, bytes = 0;
  for (int64_t round = 0; round < samples; round += ranks * B) { // all ranks evaluate as often
    const int64_t first = round + mesh_.index(kSampleAxes) * B;
    const Batch batch = rows_of(held_out_->batch_once(first, B, samples));
    fill(0, batch);
    trainer_.evaluate();
    nats += double(trainer_.scalars()[kLossSum]);
    tokens += double(trainer_.scalars()[kTokenCount]);
    if (tokenizer_) bytes += double(label_bytes(batch, *tokenizer_));
  }
  const bool is_last_stage = mesh_.coordinate(Axis::pp) + 1 == mesh_.size(Axis::pp); // which has the losses
  const bool counts = is_last_stage && mesh_.index(kTensorAxes) == 0;                // its group has seen the same
  for (double* sum : {&nats, &tokens, &bytes}) *sum = transport_.sum(counts ? *sum : 0.0);
  held_out_loss_ = nats / tokens;
  bits_per_byte_ = bytes > 0 ? nats / std::numbers::ln2 / bytes : 0;
  if (!is_first()) return;
  Json event{{"event", "eval"}, {"step", state_.step}, {"loss", held_out_loss_}, {"sequences", samples}};
  event["bits_per_byte"] = bytes > 0 ? Json(bits_per_byte_) : Json(nullptr);
  log_->write(event);
  log_->say(concat("step ", state_.step, "  held-out loss ", number(held_out_loss_, 4),
                   bytes > 0 ? concat(", ", number(bits_per_byte_, 4), " bits per byte") : std::string()));
}

bool Run::checkpoint_due() const { return !captures() && (due(config_.checkpoint.every) || finished()); }

void Run::save() {
  save_algorithms(transport_, algorithms_path());
  const std::string path = save_checkpoint((fs::path(config_.run.folder) / "checkpoints").string(), transport_,
                                           trainer_, config_, state_, tokenizer_ ? config_.data.folder : std::string());
  if (is_first()) {
    log_->write({{"event", "checkpoint"}, {"step", state_.step}, {"path", path}});
    log_->say("saved " + path);
  }
  transport_.barrier();
}

void Run::finish() {
  if (capture_) capture_->close();
  if (!is_first()) return;
  if (steps_here_ == 0)
    return log_->say(
        concat("nothing to do: the run is at step ", state_.step, ", and train.steps is ", config_.train.steps));
  Json summary{{"steps", state_.step},
               {"parameters", trainer_.table().count()},
               {"loss", mean_loss()},
               {"wall_s", seconds_since(began_)},
               {"dtype", name_of(trainer_.dtype())},
               {"ranks", transport_.size()},
               {"threads", threads_}};
  summary.update(speed(mean_step_seconds()));
  if (held_out_) summary["held_out_loss"] = held_out_loss_;
  if (held_out_ && bits_per_byte_ > 0) summary["bits_per_byte"] = bits_per_byte_;
  summary["matrix_rate"] = matrix_rate_;
  publish_text((fs::path(config_.run.folder) / "summary.json").string(), summary.dump(2) + "\n");
  receipt_->write((fs::path(config_.run.folder) / kReceiptName).string(), summary);
}

} // namespace triax
