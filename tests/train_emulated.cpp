// Whole training steps through the GPU's path, emulated: planned for a GPU, in the plan's arena, every access held to
// what its operation declares.
#include "kernels/choice.h"
#include "kernels/emulated/emulation.h"
#include "tests/helpers.h"
#include "train/favourites.h"
#include "train/trainer.h"
#include <cmath>
#include <doctest/doctest.h>
#include <optional>

using namespace triax;

namespace {

constexpr int kSteps = 2;

struct Result {
  std::vector<float> losses, gradients, weights; ///< the gradients of the first step
};

/// Trains a small Llama; on an emulated GPU if `units` are given.
Result train(Dtype dtype, const char* units, emulation::Order order = emulation::Order::forward) {
  std::optional<emulation::Emulation> emulation;
  if (units) emulation.emplace(units, order, 5);
  const Target target = Target::parse(units ? "sm_90a" : "cpu");
  const RunConfig config =
      load_config("",
                  {"data.folder=unused", "data.sequence=24", "model.width=128", "model.layers=2", "model.heads=2",
                   "model.kv_heads=1", "model.mlp=96", "model.vocabulary=83", "model.context=24",
                   "train.global_batch=2", "train.micro_batch=1", concat("train.dtype=", name_of(dtype))},
                  1);
  const auto transport = Transport::ghost(0, 1);
  const Mesh mesh{MeshShape{}, 0, 1};
  const Plan plan = make_plan(target, 1, mesh, config);
  const auto device = Device::open(target, 1);
  device->follow(plan);
  Trainer trainer(*device, *transport, mesh, config, dtype);
  trainer.initialise();
  const int64_t rows = config.data.sequence;
  for (int64_t m = 0; m < trainer.accumulation(); ++m) {
    const auto in = trainer.inputs(m);
    int64_t at = 0;
    for (int64_t n = 0; n < rows; ++n) {
      in.tokens[n] = int32_t(n % 7);
      in.labels[n] = n % 11 == 10 ? -1 : int32_t((n + m) % 5);
      in.document_start[n] = n < 13 ? 0 : 13;
    }
    for (int32_t token = 0; token < 7; ++token)
      for (int64_t n = token; n < rows; n += 7) in.order[at++] = int32_t(n);
  }
  Result result;
  const auto read = [&](const Tensor& t) {
    std::vector<float> values(size_t(t.size()));
    device->read(t, values.data());
    return values;
  };
  for (int step = 1; step <= kSteps; ++step) {
    trainer.state().learning_rate = 1e-2f;
    trainer.state().step = step;
    trainer.state().moment1_scale = float(1 / (1 - std::pow(0.9, step)));
    trainer.state().moment2_scale = float(1 / (1 - std::pow(0.95, step)));
    trainer.train();
    device->synchronize();
    result.losses.push_back(trainer.scalars()[kLossSum]);
    if (step == 1) result.gradients = read(trainer.shards().gradient_sums());
  }
  result.weights = read(dtype == Dtype::bf16 ? trainer.master() : trainer.weights());
  return result;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double(a[i]) - double(b[i])) * (double(a[i]) - double(b[i]));
    norm += double(b[i]) * double(b[i]);
  }
  return std::sqrt(difference / norm);
}

} // namespace

TEST_SUITE("train_emulated") {

  TEST_CASE("emulated training steps agree with the CPU's, and are the same bits in any order of threads") {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      CAPTURE(std::string(name_of(dtype)));
      const Result cpu = train(dtype, nullptr), gpu = train(dtype, "emulated"),
                   watched = train(dtype, "races", emulation::Order::shuffled);
      const double roundings = dtype == Dtype::bf16 ? 1e-2 : 2e-5; // of activations
      CHECK(distance(gpu.losses, cpu.losses) < roundings);
      CHECK(distance(gpu.gradients, cpu.gradients) < roundings);
      // AdamW's first steps are about the sign of a gradient, however small: of what bf16 rounds, that says nothing.
      if (dtype == Dtype::f32) CHECK(distance(gpu.weights, cpu.weights) < roundings);
      CHECK(cpu.losses[1] < cpu.losses[0]);
      CHECK(watched.losses == gpu.losses);
      CHECK(watched.gradients == gpu.gradients);
      CHECK(watched.weights == gpu.weights);
    }
  }

  TEST_CASE("a run whose attention is cuDNN's says before its first step that this binary has none, and the remedy") {
    const emulation::Emulation emulation("emulated");
    const Target target = Target::parse("sm_90a");
    const auto transport = Transport::ghost(0, 1);
    const auto plan_of = [&](const char* attention) {
      const RunConfig config =
          load_config("", {"data.folder=unused", "model=tiny", "data.sequence=16", "train.dtype=bf16",
                           "data.document_mask=false", concat("kernels.attention=", attention)});
      return make_plan(target, 1, Mesh{MeshShape{}, 0, 1}, config);
    };
    const auto follow = [&](const char* attention) {
      const Plan plan = plan_of(attention);
      return test::error_of([&] { Device::open(target, 1)->follow(plan); });
    };
    const std::string said = follow("auto");
    CHECK_MESSAGE(test::has(said, "kernels.attention is auto, which on sm_90a is 'cudnn' for such a run"), said);
    CHECK_MESSAGE(test::has(said, "set kernels.attention=triax"), said);
    CHECK(follow("triax").empty());

    settle_favourites(*transport, {}); // a CPU's run has none to settle
    CHECK(why_left_out("attention").empty());
    settle_favourites(*transport, target);
    CHECK(why_left_out("attention") == "this binary was built without 'cudnn' for sm_90a");
    CHECK(follow("auto").empty());
    CHECK(favourites_text(plan_of("auto")) == "attention by triax (this binary was built without 'cudnn' for sm_90a)");
    leave_out_favourite("attention", "");
    CHECK(favourites_text(plan_of("auto")) == "attention by cudnn");
    CHECK(favourites_text(plan_of("triax")) == "attention by triax");
  }

} // TEST_SUITE
