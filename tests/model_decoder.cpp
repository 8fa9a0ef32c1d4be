// What a model issues, on ghosts of any target: every size can be planned, and each layer has the attention that its
// configuration says.
#include "kernels/attention_shape.h"
#include "kernels/step_state.h"
#include "model/decoder.h"
#include "model/sizes.h"
#include "tests/small_model.h"
#include <doctest/doctest.h>

using namespace triax;
using namespace triax::test;

namespace {

/// The plan of one training step on [1, T] tokens.
Plan planned(const ModelConfig& config, const char* target, int64_t T) {
  const ParamTable table(config);
  const auto device = Device::ghost(Target::parse(target));
  const auto ints = [&](const char* name) { return device->persistent(name, Purpose::inputs, Dtype::i32, {T}); };
  const auto flat = [&](const char* name, Purpose purpose, Dtype dtype) {
    return device->persistent(name, purpose, dtype, {table.elements()});
  };
  const Inputs in{1, T, ints("tokens"), ints("labels"), ints("document start"), ints("order")};
  const Tensor scalars = device->persistent("scalars", Purpose::inputs, Dtype::f32, {kStepScalars});
  const Tensor weights = flat("weights", Purpose::weights, Dtype::bf16);
  WholeParameters parameters(table, weights, flat("gradients", Purpose::gradients, Dtype::f32));
  Decoder decoder(*device, config, table, T, parameters, TensorParallel(*device), ContextParallel(*device));
  device->begin("train");
  decoder.train(in, scalars, 1.0f);
  device->end();
  return device->plan();
}

/// The operations of that kind, as they were issued.
std::vector<Op> issued(const Program& program, const std::string& kind) {
  std::vector<Op> ops;
  for (const Instruction& i : program.instructions) {
    if (i.what != Instruction::What::op) continue;
    const Op& op = program.signatures[size_t(i.index)].op;
    if (op.kind->name == kind) ops.push_back(op);
  }
  return ops;
}

std::vector<int64_t> windows(const Program& program, const std::string& kind) {
  std::vector<int64_t> all;
  for (const Op& op : issued(program, kind)) all.push_back(op.get<AttentionAttributes>().window);
  return all;
}

} // namespace

TEST_SUITE("model_decoder") {

  TEST_CASE("named sizes can be planned for a CPU and for a GPU, with memory for all parameters") {
    for (const char* name : {"gpt2", "llama3-8b", "mistral-7b-v0.1", "qwen2.5-7b", "qwen3-0.6b", "qwen3-32b"})
      for (const char* target : {"cpu", "sm_90a"}) {
        CAPTURE(std::string(name));
        CAPTURE(std::string(target));
        const ModelConfig& config = named_size(name);
        const Plan plan = planned(config, target, 1024);
        const int64_t weights = 2 * parameters(config),
                      padding = 2 * (kShardBlock + 16 * kParamAlignment) * (config.layers + 3);
        CHECK(plan.bytes[size_t(Space::device)] > 3 * weights); // and gradients in f32
        for (const Buffer& b : plan.persistent)
          if (b.name == "weights") CHECK((b.bytes >= weights && b.bytes < weights + padding));
        const Program& train = *plan.find("train");
        const size_t heads = config.qk_norm ? size_t(config.layers) : 0;
        CHECK(issued(train, "head_norm_forward").size() == heads);
        CHECK(issued(train, "head_norm_backward").size() == heads);
      }
  }

  TEST_CASE("each layer attends within its own window, forward and backward") {
    ModelConfig config = small();
    config.layers = 4;
    const auto both = [&](const std::vector<int64_t>& want) {
      const Plan plan = planned(config, "cpu", 32);
      CHECK(windows(*plan.find("train"), "attention_forward") == want);
      CHECK(windows(*plan.find("train"), "attention_backward") == std::vector<int64_t>(want.rbegin(), want.rend()));
    };
    both({0, 0, 0, 0});
    config.window = 5;
    both({5, 5, 5, 5});
    config.qk_norm = true;
    config.full_layers = 3;
    both({0, 0, 0, 5});
  }

} // TEST_SUITE
