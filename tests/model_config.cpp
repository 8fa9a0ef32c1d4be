// The shapes of models: counts and what is refused.
#include "model/config.h"
#include "model/flops.h"
#include "model/params.h"
#include "model/rope.h"
#include "model/sizes.h"
#include "tests/helpers.h"
#include "tests/small_model.h"
#include <cmath>
#include <doctest/doctest.h>

using namespace triax;
using namespace triax::test;

TEST_SUITE("model_config") {

  TEST_CASE("named sizes have the published numbers of parameters") {
    const std::pair<const char*, int64_t> published[] = {{"gpt2", 124439808},
                                                         {"gpt2-medium", 354823168},
                                                         {"gpt2-large", 774030080},
                                                         {"gpt2-xl", 1557611200},
                                                         {"llama2-7b", 6738415616},
                                                         {"llama2-13b", 13015864320},
                                                         {"llama2-70b", 68976648192},
                                                         {"llama3-8b", 8030261248},
                                                         {"llama3-70b", 70553706496},
                                                         {"llama3-405b", 405853388800},
                                                         {"mistral-7b", 7241732096},
                                                         {"qwen2.5-0.5b", 494032768},
                                                         {"qwen2.5-1.5b", 1543714304},
                                                         {"qwen2.5-3b", 3085938688},
                                                         {"qwen2.5-7b", 7615616512},
                                                         {"qwen2.5-14b", 14770033664},
                                                         {"qwen2.5-32b", 32763876352},
                                                         {"qwen2.5-72b", 72706203648},
                                                         {"mistral-7b-v0.1", 7241732096},
                                                         {"qwen3-0.6b", 596049920},
                                                         {"qwen3-1.7b", 1720574976},
                                                         {"qwen3-4b", 4022468096},
                                                         {"qwen3-8b", 8190735360},
                                                         {"qwen3-14b", 14768307200},
                                                         {"qwen3-32b", 32762123264},
                                                         {"covenant-72b", 70599843840}};
    for (const auto& row : published) {
      CAPTURE(row.first);
      CHECK(parameters(named_size(row.first)) == row.second);
    }
    ModelConfig twice = named_size("covenant-72b"); // its paper counts the embedding as the head too
    twice.tied = false;
    CHECK(parameters(twice) == 72747327488);
    for (const NamedSize& size : named_sizes()) CHECK_NOTHROW(validate(size.config));
  }

  TEST_CASE("the closed form counts what the parameter table holds") {
    for (const NamedSize& size : named_sizes()) {
      CAPTURE(size.name);
      CHECK(parameters(size.config) == ParamTable(size.config).count());
    }
    ModelConfig odd = small();
    odd.kv_heads = 2;
    odd.head_width = 10; // H D is not C
    odd.qkv_bias = true;
    CHECK(parameters(odd) == ParamTable(odd).count());
  }

  TEST_CASE("the norms of queries and keys lie in one parameter and are two in Hugging Face's files") {
    ModelConfig config = small();
    config.qk_norm = true;
    const ParamTable table(config);
    const Parameter* p = table.find(Role::qk_norm, 1);
    REQUIRE(p != nullptr);
    CHECK((p->vector && !p->decay && p->rows == 2 * config.head_width && p->init_constant == 1));
    REQUIRE(p->pieces.size() == 2);
    CHECK(p->pieces[0].name == "model.layers.1.self_attn.q_norm.weight");
    CHECK(p->pieces[1].name == "model.layers.1.self_attn.k_norm.weight");
    CHECK((p->pieces[1].first == config.head_width && p->pieces[1].rows == config.head_width));
    CHECK(ParamTable(small()).find(Role::qk_norm, 1) == nullptr);
  }

  TEST_CASE("a window shortens the attention that is counted") {
    ModelConfig config = small();
    const double full = training_flops_per_token(config, 100), one = double(12 * config.heads * config.head_width);
    config.window = 100;
    CHECK(training_flops_per_token(config, 100) == full);
    config.window = 20; // 20 - 20^2 / 200 = 18 keys instead of 50
    CHECK(training_flops_per_token(config, 100) == doctest::Approx(full - 2 * one * 32));
    config.full_layers = 1;
    CHECK(training_flops_per_token(config, 100) == doctest::Approx(full - one * 32));
  }

  TEST_CASE("frequencies of llama3 scaling") {
    const ModelConfig& model = named_size("llama3-405b");
    const auto scaled = rope_frequencies(model.rope, model.head_width);
    const auto plain = rope_frequencies({.theta = 500000}, model.head_width);
    for (size_t i = 0; i < 64; ++i) {
      CAPTURE(i);
      if (i <= 28) CHECK(scaled[i] == plain[i]);
      if (i > 28 && i < 35) CHECK((scaled[i] < plain[i] && scaled[i] > plain[i] / 8));
      if (i >= 35) CHECK(scaled[i] == doctest::Approx(plain[i] / 8));
    }
    const std::pair<size_t, double> spots[] = {{28, 3.211445995e-03},
                                               {29, 2.166570764e-03},
                                               {32, 5.248461610e-04},
                                               {34, 1.785078128e-04},
                                               {35, 9.556212354e-05}};
    for (const auto& [i, value] : spots) CHECK(scaled[i] == doctest::Approx(value).epsilon(1e-6));
  }

  TEST_CASE("a gated MLP has three matrices") {
    ModelConfig config = named_size("qwen2.5-72b");
    config.kv_heads = 64;
    config.mlp = 24576;
    CHECK(parameters(config) == 72287920128);
  }

  TEST_CASE("parameters of a small model, added by hand") {
    ModelConfig llama = small();
    llama.kv_heads = 2;
    const int64_t block = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 96 + 2 * 64;
    CHECK(parameters(llama) == 2 * 100 * 64 + 2 * block + 64);
    llama.tied = llama.qkv_bias = true;
    CHECK(parameters(llama) == 100 * 64 + 2 * (block + 64 + 2 * 32) + 64);
    const int64_t gpt2_block = 4 * (64 * 64 + 64) + (64 * 96 + 96) + (96 * 64 + 64) + 4 * 64;
    CHECK(parameters(small(Family::gpt2)) == 100 * 64 + 32 * 64 + 2 * gpt2_block + 2 * 64);
  }

  TEST_CASE("an unknown size is refused with the nearest name") {
    const std::string error = error_of([] { named_size("lama3-8b"); });
    CHECK(has(error, "\"lama3-8b\""));
    CHECK(has(error, "did you mean \"llama3-8b\"?"));
    CHECK(has(error, "covenant-72b"));
    CHECK_FALSE(has(error_of([] { named_size(std::string(100000, 'z')); }), "did you mean"));
  }

  TEST_CASE("the nearest name counts a swap of neighbours as one change") {
    CHECK(nearest_name("stpes", {"steps", "seed"}) == "steps");
    CHECK(nearest_name("quite other", {"steps", "seed"}).empty());
    CHECK(nearest_name("", {"steps"}).empty());
  }

  TEST_CASE("impossible shapes are refused with their numbers") {
    const auto error = [](const std::function<void(ModelConfig&)>& change, Family family = Family::llama) {
      ModelConfig config = small(family);
      CHECK_NOTHROW(validate(config));
      change(config);
      return error_of([&] { validate(config); });
    };
    CHECK(has(error([](auto& c) { c.width = 0; }), "model.width is not given"));
    CHECK(has(error([](auto& c) { c.layers = -3; }), "model.layers is -3"));
    CHECK(has(error([](auto& c) { c.vocabulary = int64_t(1) << 40; }), "model.vocabulary is 1099511627776"));
    const std::string heads = error([](auto& c) { c.kv_heads = 3; });
    CHECK(has(heads, "model.heads is 4 and model.kv_heads is 3"));
    CHECK(has(error([](auto& c) { c.kv_heads = 8; }), "4 must be a multiple of 8"));
    CHECK(has(error([](auto& c) { c.head_width = 15; }), "model.head_width is 15, but rope turns pairs"));
    CHECK(has(error([](auto& c) { c.heads = c.kv_heads = c.head_width = 1 << 20; }), "exceeds 1048576"));
    CHECK(has(error([](auto& c) { c.norm = Norm::layer; }), "model.norm is layer, but family llama has rms"));
    CHECK(has(error([](auto& c) { c.activation = Activation::gelu_erf; }), "model.activation is gelu_erf"));
    CHECK(has(error([](auto& c) { c.position = Position::learned; }), "model.position is learned"));
    CHECK(has(error([](auto& c) { c.bias = true; }), "model.bias is true"));
    CHECK(has(error([](auto& c) { c.norm_eps = 0; }), "model.norm_eps is 0"));
    CHECK(has(error([](auto& c) { c.init_std = -1; }), "model.init_std is -1"));
    CHECK(has(error([](auto& c) { c.qkv_bias = c.qk_norm = true; }), "Qwen2 has the one and Qwen3 the other"));
    CHECK(has(error([](auto& c) { c.window = -1; }), "model.window is -1"));
    CHECK(has(error([](auto& c) { c.full_layers = 1; }), "without model.window every layer is full"));
    CHECK(has(error([](auto& c) { c.window = 4, c.full_layers = 1; }), "only Qwen2 (model.qkv_bias) and Qwen3"));
    CHECK(has(error([](auto& c) { c.qk_norm = true, c.window = 4, c.full_layers = 2; }), "model.full_layers is 2"));
    CHECK(has(error([](auto& c) { c.qk_norm = true; }, Family::gpt2), "model.qk_norm is true"));
    CHECK(has(error([](auto& c) { c.window = 8; }, Family::gpt2), "model.window is 8"));
    CHECK(has(error([](auto& c) { c.norm = Norm::rms; }, Family::gpt2), "family gpt2 has layer"));
    CHECK(has(error([](auto& c) { c.activation = Activation::swiglu; }, Family::gpt2), "model.activation is swiglu"));
    CHECK(has(error([](auto& c) { c.position = Position::rope; }, Family::gpt2), "model.position is rope"));
    CHECK(has(error([](auto& c) { c.bias = false; }, Family::gpt2), "model.bias is false"));
    CHECK(has(error([](auto& c) { c.kv_heads = 2; }, Family::gpt2), "model.kv_heads is 2"));
    CHECK(has(error([](auto& c) { c.head_width = 8; }, Family::gpt2),
              "= 32, but family gpt2 needs model.width, which is 64"));
  }

  TEST_CASE("impossible rotary embeddings are refused with their numbers") {
    const auto error = [](RopeKind kind, const std::function<void(RopeConfig&)>& change) {
      ModelConfig config = small();
      config.rope.kind = kind;
      config.rope.factor = 4;
      config.rope.original_context = 16;
      CHECK_NOTHROW(validate(config));
      change(config.rope);
      return error_of([&] { validate(config); });
    };
    CHECK(has(error(RopeKind::standard, [](auto& r) { r.theta = 0; }), "model.rope.theta is 0"));
    CHECK(has(error(RopeKind::linear, [](auto& r) { r.factor = 0.5; }), "model.rope.factor is 0.5"));
    CHECK(has(error(RopeKind::llama3, [](auto& r) { r.original_context = 0; }), "kind llama3 needs the context"));
    CHECK(has(error(RopeKind::llama3, [](auto& r) { r.low_freq_factor = 4; }), "model.rope.low_freq_factor is 4"));
    CHECK(has(error(RopeKind::yarn, [](auto& r) { r.theta = 1; }), "more than 1"));
    CHECK(has(error(RopeKind::yarn, [](auto& r) { r.beta_slow = 32; }), "model.rope.beta_slow is 32"));
    CHECK(has(error(RopeKind::yarn, [](auto& r) { r.attention_factor = NAN; }), "model.rope.attention_factor is nan"));
  }

} // TEST_SUITE
