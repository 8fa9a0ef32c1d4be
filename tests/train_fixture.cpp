// The whole model against an independent implementation: transformers with PyTorch (tests/make_fixture.py wrote the
// fixtures).
#include "kernels/step_state.h"
#include "model/decoder.h"
#include "model/huggingface.h"
#include "model/rope.h"
#include "train/json_file.h"
#include "train/weights.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <numeric>

using namespace triax;

namespace {

const std::string kFixtures = std::string(TRIAX_SOURCE_DIR) + "/tests/fixtures/";

/// A model of a fixture on a planned CPU device: the ghost first, then the run, as training does it.
struct FixtureModel {
  ModelConfig config;
  ParamTable table;
  int64_t B, T;
  float scale; ///< part of the plan, like all attributes
  std::unique_ptr<Device> device;
  Tensor weights, gradients, expected, inputs, scalars, logits;
  std::unique_ptr<WholeParameters> parameters;
  std::unique_ptr<Decoder> decoder;

  FixtureModel(const std::string& folder, int64_t batch, int64_t sequence, float gradient_scale)
      : config(from_huggingface(read_json_file(folder + "/config.json"), folder).model), table(config), B(batch),
        T(sequence), scale(gradient_scale) {
    device = Device::ghost({}, 2);
    hold();
    step();
    const Plan plan = device->plan();
    device = Device::open({}, 2);
    device->follow(plan);
    hold();
    decoder->initialise();
    restore(SafetensorsFolder(folder), "", *device, Layout{table}, weights);
  }
  void hold() {
    const auto flat = [&](const char* name) {
      return device->persistent(name, Purpose::weights, Dtype::f32, {table.elements()});
    };
    weights = flat("weights");
    gradients = flat("gradients");
    expected = flat("expected");
    inputs = device->persistent("inputs", Purpose::inputs, Dtype::i32, {5, B * T});
    scalars = device->persistent("scalars", Purpose::inputs, Dtype::f32, {kStepScalars});
    logits = device->persistent("logits", Purpose::logits, Dtype::f32, {6, config.vocabulary});
    parameters = std::make_unique<WholeParameters>(table, weights, gradients);
    decoder = std::make_unique<Decoder>(*device, config, table, T, *parameters, TensorParallel(*device),
                                        ContextParallel(*device));
  }
  Tensor input(int64_t i) const { return inputs.slice(0, i, 1).view({B * T}); }
  void step() {
    const Inputs in{B, T, input(0), input(1), input(2), input(3)};
    device->begin("train");
    decoder->train(in, scalars, scale);
    device->end();
    device->begin("predict");
    decoder->predict(in, input(4).slice(0, 0, 6), logits);
    device->end();
  }
  /// Feeds a batch, every row one document.
  void feed(const std::vector<int32_t>& tokens, const std::vector<int32_t>& labels) {
    const size_t n = size_t(B * T);
    std::vector<int32_t> zeros(n), order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return tokens[size_t(a)] < tokens[size_t(b)]; });
    device->write(input(0), tokens.data());
    device->write(input(1), labels.data());
    device->write(input(2), zeros.data());
    device->write(input(3), order.data());
    device->write(input(4), zeros.data());
    device->write(scalars, std::vector<float>(kStepScalars).data());
    device->write(gradients, std::vector<float>(size_t(table.elements())).data());
  }
  std::vector<float> read(const Tensor& t) {
    std::vector<float> values(size_t(t.size()));
    device->read(t, values.data());
    return values;
  }
};

std::vector<int32_t> ints(const StoredTensor& t) {
  std::vector<int32_t> values(size_t(elements(t)));
  REQUIRE(t.type == StoredType::i32);
  std::memcpy(values.data(), t.data, values.size() * 4);
  return values;
}

double norm(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += (double(a[i]) - (b ? double(b[i]) : 0)) * (double(a[i]) - (b ? double(b[i]) : 0));
  return std::sqrt(sum);
}

void compare_with_transformers(const std::string& name) {
  const std::string folder = kFixtures + name;
  const SafetensorsFolder reference(folder, "reference");
  const StoredTensor& tokens = reference.at("tokens");

  const auto labels = ints(reference.at("labels")), rows = ints(reference.at("rows"));
  const int64_t counted = std::count_if(labels.begin(), labels.end(), [](int32_t l) { return l >= 0; });
  FixtureModel m(folder, tokens.shape[0], tokens.shape[1], 1.0f / float(counted));
  m.feed(ints(tokens), labels);
  std::vector<int32_t> padded_rows(size_t(m.B * m.T));
  std::copy(rows.begin(), rows.end(), padded_rows.begin());
  m.device->write(m.input(4), padded_rows.data());
  m.step();

  const auto scalars = m.read(m.scalars);
  const double expected_loss = read_json_file(folder + "/reference.json").at("loss").get<double>();
  CHECK(scalars[kTokenCount] == float(counted));
  CHECK(std::abs(scalars[kLossSum] / double(counted) - expected_loss) <= 1e-6 * expected_loss);

  std::vector<float> expected_logits(size_t(m.logits.size()));
  read_floats(reference.at("logits"), 0, m.logits.size(), expected_logits.data());
  const auto logits = m.read(m.logits);
  CHECK(norm(logits.data(), expected_logits.data(), m.logits.size()) <=
        1e-5 * norm(expected_logits.data(), nullptr, m.logits.size()));

  restore(reference, "grad.", *m.device, Layout{m.table}, m.expected);
  const auto got = m.read(m.gradients), want = m.read(m.expected);
  const double whole = norm(want.data(), nullptr, m.table.elements());
  for (const Parameter& p : m.table.rows())
    for (const Piece& piece : p.pieces) {
      const int64_t at = p.offset + piece.first * p.columns, n = piece.rows * p.columns;
      const double limit = 1e-5 * std::max(norm(want.data() + at, nullptr, n), 1e-3 * whole);
      INFO(name, " ", piece.name);
      CHECK(norm(got.data() + at, want.data() + at, n) <= limit);
    }
}

} // namespace

TEST_SUITE("train_fixture") {

  TEST_CASE("llama, untied, llama3 rope, GQA: loss, logits and all gradients as in transformers") {
    compare_with_transformers("llama");
  }
  TEST_CASE("llama, tied, plain rope: loss, logits and all gradients as in transformers") {
    compare_with_transformers("llama_tied");
  }
  TEST_CASE("gpt2: loss, logits and all gradients as in transformers") { compare_with_transformers("gpt2"); }
  TEST_CASE("qwen2, tied, biases: loss, logits and all gradients as in transformers") {
    compare_with_transformers("qwen2");
  }
  TEST_CASE("mistral, sliding window: loss, logits and all gradients as in transformers") {
    compare_with_transformers("mistral");
  }
  TEST_CASE("qwen2, untied, one full layer and two with a window: loss, logits and all gradients as in transformers") {
    compare_with_transformers("qwen2_window");
  }
  TEST_CASE("qwen3, tied, norms of queries and keys: loss, logits and all gradients as in transformers") {
    compare_with_transformers("qwen3");
  }

  TEST_CASE("rope frequencies of every kind as in transformers") {
    const auto cases = read_json_file(kFixtures + "rope.json").at("cases");
    CHECK(cases.size() >= 8);
    for (const auto& [name, c] : cases.items()) {
      nlohmann::json file = read_json_file(kFixtures + "llama/config.json");
      file["rope_theta"] = c.at("rope_theta");
      file["max_position_embeddings"] = c.at("max_position_embeddings");
      file["rope_scaling"] = c.at("rope_scaling");
      const int64_t D = c.at("head_dim").get<int64_t>();
      const RopeConfig rope = from_huggingface(file, name).model.rope;
      const auto frequencies = rope_frequencies(rope, D);
      INFO(name);
      REQUIRE(frequencies.size() == c.at("inv_freq").size());
      for (size_t i = 0; i < frequencies.size(); ++i)
        CHECK(frequencies[i] == doctest::Approx(c.at("inv_freq")[i].get<double>()).epsilon(2e-6));
      const double factor = rope.kind == RopeKind::yarn ? rope.attention_factor : 1.0;
      CHECK(factor == doctest::Approx(c.at("attention_factor").get<double>()).epsilon(1e-6));
    }
  }

  TEST_CASE("a batch whose labels are all masked gives loss 0, no token, no gradient, no NaN") {
    FixtureModel m(kFixtures + "llama", 2, 9, 1.0f);
    m.feed(std::vector<int32_t>(18, 5), std::vector<int32_t>(18, -1));
    m.step();
    const auto scalars = m.read(m.scalars);
    CHECK(scalars[kLossSum] == 0.0f);
    CHECK(scalars[kTokenCount] == 0.0f);
    for (float g : m.read(m.gradients)) REQUIRE(g == 0.0f);
  }

  TEST_CASE("gradients of two passes accumulate") {
    FixtureModel m(kFixtures + "gpt2", 2, 11, 1.0f);
    std::vector<int32_t> tokens(22), labels(22);
    for (int i = 0; i < 22; ++i) tokens[size_t(i)] = (i * 37 + 5) % 101, labels[size_t(i)] = (i * 11 + 3) % 101;
    m.feed(tokens, labels);
    m.step();
    const auto once = m.read(m.gradients);
    m.step();
    const auto twice = m.read(m.gradients);
    std::vector<float> doubled = once;
    for (float& g : doubled) g *= 2;
    CHECK(norm(twice.data(), doubled.data(), m.table.elements()) <=
          1e-6 * norm(doubled.data(), nullptr, m.table.elements()));
  }

  TEST_CASE("the same step twice gives the same bits") {
    std::vector<float> first;
    for (int run = 0; run < 2; ++run) {
      FixtureModel m(kFixtures + "qwen2", 3, 23, 0.01f);
      std::vector<int32_t> tokens(69), labels(69);
      for (int i = 0; i < 69; ++i) tokens[size_t(i)] = (i * 37 + 5) % 101, labels[size_t(i)] = (i * 11 + 3) % 101;
      m.feed(tokens, labels);
      m.step();
      const auto gradients = m.read(m.gradients);
      if (run == 0)
        first = gradients;
      else
        CHECK(std::memcmp(first.data(), gradients.data(), first.size() * 4) == 0);
    }
  }

} // TEST_SUITE
