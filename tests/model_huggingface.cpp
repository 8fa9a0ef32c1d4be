// Shapes of models to and from Hugging Face's config.json.
#include "model/huggingface.h"
#include "model/sizes.h"
#include "tests/helpers.h"
#include "tests/small_model.h"
#include <cmath>
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace triax;
using namespace triax::test;
using json = nlohmann::json;

namespace {

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

TEST_SUITE("model_huggingface") {

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

  TEST_CASE("windows go to Hugging Face and back, in the words of each architecture") {
    ModelConfig mistral = small();
    mistral.window = 7;
    json out = to_huggingface(mistral, "float32");
    CHECK(out["architectures"][0] == "MistralForCausalLM");
    CHECK(out["model_type"] == "mistral");
    CHECK(out["sliding_window"] == 7);
    CHECK_FALSE((out.contains("layer_types") || out.contains("attention_bias")));
    CHECK(read(out).model == mistral);

    for (const bool qwen3 : {false, true})
      for (const int64_t full : {0, 1}) {
        ModelConfig qwen = small();
        (qwen3 ? qwen.qk_norm : qwen.qkv_bias) = true;
        qwen.head_width = 24;
        qwen.window = 7;
        qwen.full_layers = full;
        out = to_huggingface(qwen, "float32");
        CHECK(out["architectures"][0] == (qwen3 ? "Qwen3ForCausalLM" : "Qwen2ForCausalLM"));
        CHECK(out["use_sliding_window"] == true);
        CHECK(out["sliding_window"] == 7);
        CHECK(out["max_window_layers"] == full);
        CHECK(out["layer_types"] == json{full ? "full_attention" : "sliding_attention", "sliding_attention"});
        CHECK(out.contains("attention_bias") == qwen3);
        CHECK(read(out).model == qwen);
        out.erase("layer_types"); // as before transformers 4.53
        CHECK(read(out).model == qwen);
        out["use_sliding_window"] = false;
        CHECK(read(out).model.window == 0);
      }
    out = to_huggingface(named_size("qwen3-8b"), "bfloat16");
    CHECK(out["head_dim"] == 128);
    CHECK(out["attention_bias"] == false);
    CHECK(out["use_sliding_window"] == false);
    CHECK(out["sliding_window"].is_null());
    CHECK(out["max_window_layers"] == 36);
    CHECK(out["layer_types"] == json(std::vector<std::string>(36, "full_attention")));
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
    json mistral = llama_json();
    mistral["architectures"] = {"MistralForCausalLM"};
    mistral["sliding_window"] = nullptr;
    CHECK(read(mistral).model == read(llama_json()).model);
    json qwen = llama_json();
    qwen["architectures"] = {"Qwen2ForCausalLM"};
    qwen["sliding_window"] = 131072; // written by Qwen2.5 though unused
    CHECK(read(qwen).model.qkv_bias);
    CHECK(read(qwen).model.window == 0);
    for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
      CHECK(has(error_with(gpt2_json(), key, true), key));
    CHECK(has(error_with(gpt2_json(), "scale_attn_weights", false), "attention without its scale"));
    CHECK(has(error_with(gpt2_json(), "activation_function", "relu"), "\"activation_function\" is \"relu\""));
  }

  TEST_CASE("windows are read as transformers reads them") {
    CHECK(has(error_with(llama_json(), "sliding_window", 4096), "LlamaForCausalLM has none"));
    json mistral = llama_json();
    mistral["architectures"] = {"MistralForCausalLM"};
    CHECK(read(mistral).model.window == 4096);
    REQUIRE(read(mistral).notes.size() == 1);
    CHECK(has(read(mistral).notes[0], "\"sliding_window\" is not given: 4096 taken"));
    CHECK(has(error_with(mistral, "sliding_window", 0), "\"sliding_window\" is 0, but must be above 0"));
    CHECK(has(error_with(mistral, "layer_types", std::vector<std::string>(32, "full_attention")),
              "MistralForCausalLM has its window in every layer"));
    mistral["sliding_window"] = 100;
    mistral["layer_types"] = std::vector<std::string>(32, "sliding_attention");
    CHECK(read(mistral).model.window == 100);
    CHECK(read(mistral).notes.empty());
    mistral["sliding_window"] = nullptr;
    CHECK(has(error_of([&] { read(mistral); }), "has sliding_attention, but no \"sliding_window\" is given"));

    json qwen = llama_json();
    qwen["architectures"] = {"Qwen2ForCausalLM"};
    qwen["use_sliding_window"] = true;
    CHECK((read(qwen).model.window == 4096 && read(qwen).model.full_layers == 28)); // the defaults of transformers
    qwen["sliding_window"] = nullptr;
    CHECK(read(qwen).model.window == 0);
    qwen["sliding_window"] = 64;
    qwen["max_window_layers"] = 32; // no layer is left for the window
    CHECK((read(qwen).model.window == 0 && read(qwen).model.full_layers == 0));
    CHECK(has(error_with(qwen, "max_window_layers", -1), "\"max_window_layers\" is -1"));
    qwen["num_hidden_layers"] = 3;
    qwen["layer_types"] = {"full_attention", "full_attention", "sliding_attention"}; // counts for more
    CHECK((read(qwen).model.window == 64 && read(qwen).model.full_layers == 2));
    CHECK(has(error_with(qwen, "use_sliding_window", false), "see \"use_sliding_window\""));
    CHECK(has(error_with(qwen, "layer_types", {"full_attention"}), "must name a type for each of 3 layers"));
    CHECK(has(error_with(qwen, "layer_types", {"full_attention", "chunked_attention", "full_attention"}),
              "\"layer_types\" has \"chunked_attention\""));
    CHECK(has(error_with(qwen, "layer_types", {"full_attention", "sliding_attention", "full_attention"}),
              "full_attention at layer 2, behind sliding_attention"));

    json qwen3 = llama_json();
    qwen3["architectures"] = {"Qwen3ForCausalLM"};
    qwen3["hidden_size"] = 1000; // no multiple of the heads: Qwen3's heads have 128 unless the file says otherwise
    CHECK((read(qwen3).model.qk_norm && read(qwen3).model.head_width == 128 && !read(qwen3).model.qkv_bias));
    CHECK(has(error_with(qwen3, "attention_bias", true), "\"attention_bias\" is true"));
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
