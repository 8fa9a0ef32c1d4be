#include "train/inference.h"
#include "kernels/elementwise.h"
#include "kernels/step_state.h"
#include "model/huggingface.h"
#include "train/json_file.h"
#include "train/publish.h"
#include "train/weights.h"
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace triax {

namespace fs = std::filesystem;

namespace {

ModelConfig read_model(const std::string& folder) {
  const std::string path = (fs::path(folder) / "config.json").string();
  return from_huggingface(read_json_file(path), path).model;
}

Dtype stored_dtype(const std::string& folder) {
  const SafetensorsFolder files(folder);
  return files.at(files.names().front()).type == StoredType::bf16 ? Dtype::bf16 : Dtype::f32;
}

} // namespace

std::string model_folder(const std::string& path) {
  std::error_code error;
  DEMAND(fs::is_directory(path, error), "there is no folder ", path,
         ": name a run's folder, a checkpoint, or a Hugging Face folder");
  if (fs::exists(fs::path(path) / "config.json", error)) return path;
  const Newest newest = newest_complete((fs::path(path) / "checkpoints").string());
  DEMAND(newest.path, path, " is neither a Hugging Face folder (no config.json) nor a run with a checkpoint");
  return *newest.path;
}

/// Rows of what a step reads, each [B*T]; to predict, the row of the last token stands first among the labels.
enum InputRow : int64_t { kTokens, kLabels, kDocumentStart, kInputRows };

/// What lies on the device, and the kinds of step.
struct Inference::Held {
  Device& device;
  int64_t batch, sequence;
  Tensor weights, host_inputs, host_scalars, host_logits, inputs, scalars, logits;
  WholeParameters parameters;
  Decoder decoder;

  Held(Device& d, const ModelConfig& model, const ParamTable& table, Dtype dtype, int64_t B, int64_t T)
      : device(d), batch(B), sequence(T), weights(d.persistent("weights", Purpose::weights, dtype, {table.elements()})),
        host_inputs(d.persistent("host inputs", Purpose::inputs, Dtype::i32, {kInputRows, B * T}, Space::pinned)),
        host_scalars(d.persistent("host scalars", Purpose::inputs, Dtype::f32, {kStepScalars}, Space::pinned)),
        host_logits(d.persistent("host logits", Purpose::inputs, dtype, {1, model.vocabulary}, Space::pinned)),
        inputs(d.persistent("inputs", Purpose::inputs, Dtype::i32, {kInputRows, B * T})),
        scalars(d.persistent("scalars", Purpose::inputs, Dtype::f32, {kStepScalars})),
        logits(d.persistent("last logits", Purpose::logits, dtype, {1, model.vocabulary})),
        parameters(table, weights, {}), decoder(d, model, table, T, parameters, TensorParallel(d), ContextParallel(d)) {
    decoder.initialise();
  }
  Tensor input(InputRow i) const { return inputs.slice(0, i, 1).view({batch * sequence}); }
  void evaluate() {
    device.begin("evaluate");
    Stream compute = device.compute();
    compute.run(copy(inputs, host_inputs));
    compute.run(fill(scalars, 0.0f));
    decoder.evaluate({batch, sequence, input(kTokens), input(kLabels), input(kDocumentStart), {}}, scalars);
    compute.run(copy(host_scalars, scalars));
    device.end();
  }
  /// The first sequence's next token.
  void predict() {
    device.begin("predict");
    Stream compute = device.compute();
    compute.run(copy(inputs, host_inputs));
    const auto first = [&](InputRow i) { return input(i).slice(0, 0, sequence); };
    decoder.predict({1, sequence, first(kTokens), {}, first(kDocumentStart), {}}, input(kLabels).slice(0, 0, 1),
                    logits);
    compute.run(copy(host_logits, logits));
    device.end();
  }
};

Inference::Inference(const std::string& folder, const Target& target, int threads, int64_t batch, int64_t sequence)
    : model_(read_model(folder)), table_(model_), batch_(batch),
      sequence_(sequence ? sequence : std::min<int64_t>(model_.context, 2048)), dtype_(stored_dtype(folder)) {
  DEMAND(sequence_ <= model_.context, "sequences of ", sequence_, " tokens were asked for, but the model in ", folder,
         " is made for ", model_.context);
  DEMAND(batch_ <= INT32_MAX / sequence_, "a batch of ", batch_, " sequences of ", sequence_, " tokens is ",
         batch_ * sequence_, " tokens, more than a step can have; ask for fewer at once");
  const auto ghost = Device::ghost(target, threads);
  {
    Held recorded(*ghost, model_, table_, dtype_, batch_, sequence_);
    recorded.evaluate();
    recorded.predict();
  }
  device_ = Device::open(target, threads);
  try {
    device_->follow(ghost->plan());
  } catch (const Error& error) {
    fail(concat(folder, " with ", batch_, " sequences of ", sequence_, " tokens at once: ", error.what()));
  }
  held_ = std::make_unique<Held>(*device_, model_, table_, dtype_, batch_, sequence_);
  restore(SafetensorsFolder(folder), "", *device_, Layout{table_}, held_->weights);
}

Inference::~Inference() = default;

Inference::Loss Inference::loss(const Batch& b) {
  ENSURE(b.count == batch_ && b.sequence == sequence_, "a batch of ", b.count, " x ", b.sequence);
  int32_t* to = held_->host_inputs.data<int32_t>();
  const int64_t rows = batch_ * sequence_;
  std::copy(b.tokens.begin(), b.tokens.end(), to);
  std::copy(b.labels.begin(), b.labels.end(), to + kLabels * rows);
  std::copy(b.document_start.begin(), b.document_start.end(), to + kDocumentStart * rows);
  held_->evaluate();
  device_->synchronize();
  const float* scalars = held_->host_scalars.data<float>();
  return {double(scalars[kLossSum]), double(scalars[kTokenCount])};
}

std::vector<float> Inference::next(const std::vector<int32_t>& ids) {
  ENSURE(!ids.empty(), "nothing to go on from");
  int32_t* to = held_->host_inputs.data<int32_t>();
  const int64_t rows = batch_ * sequence_, count = std::min<int64_t>(int64_t(ids.size()), sequence_);
  std::fill_n(to, kInputRows * rows, 0); // what stands behind the last token is never attended to
  std::copy(ids.end() - count, ids.end(), to);
  to[kLabels * rows] = int32_t(count - 1);
  held_->predict();
  device_->synchronize();
  return floats_of(dtype_, held_->host_logits.data<std::byte>(), model_.vocabulary);
}

} // namespace triax
