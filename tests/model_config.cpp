// The shapes of models: counts, what is refused, and the way to and from Hugging Face's config.json.
#include "model/config.h"
#include "model/huggingface.h"
#include "model/params.h"
#include "model/rope.h"
#include "model/sizes.h"
#include "tests/helpers.h"
#include <cmath>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace triax;
using namespace triax::test;
using json = nlohmann::json;

namespace {

ModelConfig small(Family family = Family::llama) {
  ModelConfig config = family_defaults(family);
  config.width = 64;
  config.layers = 2;
  config.heads = config.kv_heads = 4;
  config.head_width = 16;
  config.mlp = 96;
  config.vocabulary = 100;
  config.context = 32;
  return config;
}

json llama_json() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 4096},
          {"num_hidden_layers", 32},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 8},
          {"intermediate_size", 14336},
          {"vocab_size", 128256},
          {"max_position_embeddings", 131072},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"}};
}

json gpt2_json() {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"n_embd", 768},
          {"n_layer", 12},
          {"n_head", 12},
          {"n_ctx", 1024},
          {"n_positions", 1024},
          {"vocab_size", 50257},
          {"layer_norm_epsilon", 1e-5},
          {"activation_function", "gelu_new"}};
}

HuggingFaceModel read(const json& config) { return from_huggingface(config, "folder/config.json"); }

std::string error_with(json config, const char* key, const json& value) {
  config[key] = value;
  return error_of([&] { read(config); });
}

} // namespace

TEST_SUITE("model_config") {

  TEST_CASE("named sizes have the published numbers of parameters") {
    const std::pair<const char*, int64_t> published[] = {
        {"gpt2", 124439808},           {"gpt2-medium", 354823168},   {"gpt2-large", 774030080},
        {"gpt2-xl", 1557611200},       {"llama2-7b", 6738415616},    {"llama2-13b", 13015864320},
        {"llama2-70b", 68976648192},   {"llama3-8b", 8030261248},    {"llama3-70b", 70553706496},
        {"llama3-405b", 405853388800}, {"mistral-7b", 7241732096},   {"qwen2.5-0.5b", 494032768},
        {"qwen2.5-1.5b", 1543714304},  {"qwen2.5-3b", 3085938688},   {"qwen2.5-7b", 7615616512},
        {"qwen2.5-14b", 14770033664},  {"qwen2.5-32b", 32763876352}, {"qwen2.5-72b", 72706203648},
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

  TEST_CASE("every named size goes to Hugging Face and back") {
    for (const NamedSize& size : named_sizes()) {
      CAPTURE(size.name);
      const HuggingFaceModel back = read(json::parse(to_huggingface(size.config, "bfloat16").dump()));
      CHECK(back.model == size.config);
      CHECK(back.notes.empty());
    }
    ModelConfig yarn = small();
    yarn.rope = {.kind = RopeKind::yarn,
                 .factor = 4,
                 .original_context = 8,
                 .beta_fast = 16,
                 .attention_factor = 1.5,
                 .truncate = false};
    CHECK(read(to_huggingface(yarn, "float32")).model == yarn);
    ModelConfig linear = small();
    linear.rope.kind = RopeKind::linear;
    linear.rope.factor = 2;
    CHECK(read(to_huggingface(linear, "float32")).model == linear);
    ModelConfig erf = small(Family::gpt2);
    erf.activation = Activation::gelu_erf;
    CHECK(read(to_huggingface(erf, "float32")).model == erf);
  }

  TEST_CASE("what is written has both spellings of RoPE and dtype") {
    const json out = to_huggingface(named_size("llama3-405b"), "bfloat16", 128001);
    CHECK(out["rope_theta"] == 500000.0);
    CHECK(out["rope_scaling"]["rope_type"] == "llama3");
    CHECK(out["rope_parameters"]["rope_theta"] == 500000.0);
    CHECK(out["rope_parameters"]["factor"] == 8.0);
    CHECK(out["torch_dtype"] == "bfloat16");
    CHECK(out["dtype"] == "bfloat16");
    CHECK(out["eos_token_id"] == 128001);
    CHECK(to_huggingface(named_size("llama3-8b"), "float32")["rope_scaling"].is_null());
    CHECK(to_huggingface(named_size("qwen2.5-7b"), "float32")["architectures"][0] == "Qwen2ForCausalLM");
    CHECK(to_huggingface(named_size("gpt2"), "float32")["eos_token_id"].is_null());
  }

  TEST_CASE("rope_theta is read flat and nested, and its absence is noted") {
    CHECK(read(llama_json()).model.rope.theta == 500000);
    json nested = llama_json();
    nested.erase("rope_theta");
    nested["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 250000.0}};
    CHECK(read(nested).model.rope.theta == 250000);
    CHECK(read(nested).notes.empty());
    json absent = llama_json();
    absent.erase("rope_theta");
    const HuggingFaceModel model = read(absent);
    CHECK(model.model.rope.theta == 10000);
    REQUIRE(model.notes.size() == 1);
    CHECK(has(model.notes[0], "\"rope_theta\" is not given: 10000 taken"));
    nested["rope_parameters"].erase("rope_theta");
    CHECK(read(nested).model.rope.theta == 10000);
    CHECK(read(nested).notes.size() == 1);
    nested["rope_parameters"]["rope_theta"] = 1;
    CHECK(has(error_with(nested, "rope_theta", 2), "\"rope_theta\" is 2, but in \"rope_parameters\" it is 1"));
  }

  TEST_CASE("RoPE scaling of every kind") {
    json config = llama_json();
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", 8.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}};
    RopeConfig expected{.kind = RopeKind::llama3, .theta = 500000, .factor = 8, .original_context = 8192};
    CHECK(read(config).model.rope == expected);
    config["rope_parameters"] = config["rope_scaling"];
    config["rope_parameters"]["rope_theta"] = 500000;
    CHECK(read(config).model.rope == expected);
    config.erase("rope_theta"); // then the nested base serves both
    CHECK(read(config).model.rope == expected);
    config["rope_scaling"]["factor"] = 4;
    CHECK(has(error_of([&] { read(config); }), "\"rope_scaling\" and \"rope_parameters\" disagree"));

    json yarn = llama_json();
    yarn["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
    CHECK(read(yarn).model.rope.attention_factor == doctest::Approx(0.1 * std::log(4.0) + 1));
    CHECK(read(yarn).model.rope.beta_fast == 32);
    yarn["rope_scaling"].erase("factor");
    CHECK(read(yarn).model.rope.factor == 4);
    yarn["rope_scaling"]["mscale"] = 1.0;
    yarn["rope_scaling"]["mscale_all_dim"] = 1.0;
    CHECK(read(yarn).model.rope.attention_factor == 1);
    yarn["rope_scaling"]["original_max_position_embeddings"] = 0;
    CHECK(has(error_of([&] { read(yarn); }), "\"original_max_position_embeddings\" is 0"));

    json linear = llama_json();
    linear["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
    CHECK(read(linear).model.rope.kind == RopeKind::linear);
    linear["rope_scaling"].erase("factor");
    CHECK(has(error_of([&] { read(linear); }), "rope_scaling: \"factor\" is not given"));
    for (const char* type : {"dynamic", "longrope", "mrope", "su"})
      CHECK(has(error_with(llama_json(), "rope_scaling", {{"rope_type", type}, {"factor", 2}}),
                concat("RoPE type \"", type, "\" is not offered")));
    CHECK(has(error_with(llama_json(), "rope_parameters", {{"full_attention", {{"rope_theta", 1}}}}), "by layer type"));
    CHECK(has(error_with(llama_json(), "rope_scaling", "llama3"),
              "\"rope_scaling\" is \"llama3\", but must be an object"));
    CHECK(has(
        error_with(llama_json(), "rope_scaling", {{"type", "linear"}, {"factor", 2}, {"partial_rotary_factor", 0.5}}),
        "\"partial_rotary_factor\" is not 1"));
  }

  TEST_CASE("what would be another network is refused by name") {
    CHECK(has(error_with(llama_json(), "architectures", {"MixtralForCausalLM"}),
              "\"MixtralForCausalLM\" is not offered"));
    CHECK(has(error_with(llama_json(), "architectures", "LlamaForCausalLM"), "must be a list of one name"));
    CHECK(has(error_with(llama_json(), "hidden_act", "gelu"), "\"hidden_act\" is \"gelu\""));
    CHECK(has(error_with(llama_json(), "attention_bias", true), "\"attention_bias\" is true"));
    CHECK(has(error_with(llama_json(), "mlp_bias", true), "\"mlp_bias\" is true"));
    CHECK(has(error_with(llama_json(), "quantization_config", json::object()), "quantised weights"));
    CHECK(has(error_with(llama_json(), "partial_rotary_factor", 0.5), "\"partial_rotary_factor\" is not 1"));
    CHECK(
        has(error_with(llama_json(), "layer_types", {"full_attention", "sliding_attention"}), "\"sliding_attention\""));
    json mistral = llama_json();
    mistral["architectures"] = {"MistralForCausalLM"};
    mistral["sliding_window"] = nullptr;
    CHECK(read(mistral).model == read(llama_json()).model);
    CHECK(has(error_with(mistral, "sliding_window", 4096), "\"sliding_window\" is 4096"));
    json qwen = llama_json();
    qwen["architectures"] = {"Qwen2ForCausalLM"};
    qwen["sliding_window"] = 131072; // written by Qwen2.5 though unused
    CHECK(read(qwen).model.qkv_bias);
    CHECK(has(error_with(qwen, "use_sliding_window", true), "sliding windows are not offered"));
    for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
      CHECK(has(error_with(gpt2_json(), key, true), key));
    CHECK(has(error_with(gpt2_json(), "scale_attn_weights", false), "attention without its scale"));
    CHECK(has(error_with(gpt2_json(), "activation_function", "relu"), "\"activation_function\" is \"relu\""));
  }

  TEST_CASE("missing and ill-typed keys are refused by name") {
    for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                            "vocab_size", "max_position_embeddings"}) {
      json config = llama_json();
      config.erase(key);
      const std::string error = error_of([&] { read(config); });
      CHECK(has(error, concat("folder/config.json: \"", key, "\" is not given")));
      CHECK(has(error_with(config, key, "many"), concat("\"", key, "\" is \"many\", but must be a whole number")));
      CHECK(has(error_with(config, key, 1.5), "must be a whole number"));
      CHECK(error_with(config, key, uint64_t(1) << 63) != "");
      CHECK(error_with(config, key, -1) != "");
      CHECK(error_with(config, key, 0) != "");
    }
    CHECK(has(error_with(llama_json(), "tie_word_embeddings", 1), "must be true or false"));
    CHECK(has(error_with(llama_json(), "rms_norm_eps", "small"), "must be a number"));
    CHECK(has(error_with(llama_json(), "hidden_act", 3), "must be a string"));
    CHECK(
        has(error_with(llama_json(), "num_attention_heads", 30), "4096 is no multiple of \"num_attention_heads\" 30"));
    CHECK(has(error_with(llama_json(), "num_key_value_heads", 5), "model.heads is 32 and model.kv_heads is 5"));
    CHECK(has(error_with(gpt2_json(), "n_head", 7), "\"n_embd\" 768 is no multiple of \"n_head\" 7"));
    CHECK(has(error_with(gpt2_json(), "n_embd", (int64_t(1) << 60) * 3), "which no model has"));
    CHECK(has(error_of([] { read(json::array()); }), "holds array"));
    CHECK(has(error_of([] { read({{"model_type", "bert"}}); }), "\"model_type\" is \"bert\""));
    CHECK(has(error_of([] { read(json::object()); }), "\"model_type\" is not given"));
  }

  TEST_CASE("what transformers assumes is assumed") {
    json config = llama_json();
    config.erase("architectures");
    config["model_type"] = "llama";
    config.erase("num_key_value_heads");
    config["head_dim"] = nullptr;
    CHECK(read(config).model.kv_heads == 32);
    CHECK(read(config).model.head_width == 128);
    config["head_dim"] = 64;
    CHECK(read(config).model.head_width == 64);
    config.erase("rms_norm_eps");
    CHECK(read(config).model.norm_eps == 1e-6);
    CHECK(read(config).notes.size() == 1);
    const HuggingFaceModel gpt2 = read(gpt2_json());
    CHECK(gpt2.model == named_size("gpt2"));
    json dropout = gpt2_json();
    dropout["attn_pdrop"] = 0.1;
    REQUIRE(read(dropout).notes.size() == 1);
    CHECK(has(read(dropout).notes[0], "without dropout"));
    json positions = gpt2_json();
    positions.erase("n_positions");
    positions["n_inner"] = 1000;
    positions["tie_word_embeddings"] = false;
    positions["activation_function"] = "gelu";
    CHECK(read(positions).model.context == 1024);
    CHECK(read(positions).model.mlp == 1000);
    CHECK_FALSE(read(positions).model.tied);
    CHECK(read(positions).model.activation == Activation::gelu_erf);
  }

} // TEST_SUITE
