// The configuration of a run: what is read, what is derived, what is refused and in which words.
#include "model/huggingface.h"
#include "model/sizes.h"
#include "tests/helpers.h"
#include "train/config.h"
#include "train/json_file.h"
#include "train/trainer.h"
#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

using namespace triax;
using namespace triax::test;

namespace {

const char* const kLeast = R"({"model": "gpt2", "data": {"folder": "shards"}})";

class Written {
public:
  explicit Written(const std::string& text) { put(path(), text); }
  std::string path() const { return folder_ / "demo.json"; }
  RunConfig load(const std::vector<std::string>& sets = {}, int64_t ranks = 0) const {
    return load_config(path(), sets, ranks);
  }

private:
  TemporaryFolder folder_;
};

std::string error_in(const std::string& text) {
  const Written file(text);
  return error_of([&] { file.load(); });
}
std::string error_with(const std::vector<std::string>& sets, int64_t ranks = 0) {
  const Written file(kLeast);
  return error_of([&] { file.load(sets, ranks); });
}
RunConfig with(const std::vector<std::string>& sets, int64_t ranks = 0) { return Written(kLeast).load(sets, ranks); }

} // namespace

TEST_SUITE("train_config") {

  TEST_CASE("two fields are enough, comments are allowed") {
    const RunConfig config =
        Written("// a run\n{\"model\": \"gpt2\", /* here */ \"data\": {\"folder\": \"a b/é\"}}").load();
    CHECK(config.model == named_size("gpt2"));
    CHECK(config.data.folder == "a b/é");
    CHECK(config.train == TrainConfig{});
    CHECK(config.optimizer == OptimizerConfig{});
    CHECK(config.run.folder == "runs/demo");
  }

  TEST_CASE("every field goes to JSON and back") {
    RunConfig config;
    config.model = named_size("llama3-405b");
    std::vector<Setting> list = settings(config);
    config.data.folder = "it's $HOME \"é\"\n";
    config.train.steps = 1234567;
    config.optimizer.schedule = ScheduleKind::wsd;
    config.optimizer.cooldown = Cooldown::sqrt;
    config.optimizer.lr = 0.1 + 0.2;
    config.data.shuffle = false;
    config.checkpoint.initial = "weights";
    config.threads = 3;
    const RunConfig back = Written(to_json(config).dump(2)).load();
    CHECK(back == config);
    CHECK(to_json(back).dump() == to_json(config).dump());
    // A fresh value in every field: nothing that is read is forgotten by the comparison, and the reverse.
    for (Setting& setting : list) {
      CAPTURE(setting.key);
      const RunConfig before = config;
      const std::string text = to_json(config).dump();
      if (auto* member = std::get_if<int64_t*>(&setting.member)) **member += 1;
      if (auto* member = std::get_if<double*>(&setting.member)) **member *= 0.75, **member += 0.01;
      if (auto* member = std::get_if<bool*>(&setting.member)) **member = !**member;
      if (auto* member = std::get_if<std::string*>(&setting.member)) **member += "x";
      if (auto* choice = std::get_if<Choice>(&setting.member)) choice->set(choice->get() == 0 ? 1 : 0);
      CHECK_FALSE(config == before);
      CHECK(to_json(config).dump() != text);
    }
  }

  TEST_CASE("every field has a sentence, and help shows all") {
    RunConfig config;
    std::ostringstream help;
    print_help(help);
    std::set<std::string> keys;
    for (const Setting& setting : settings(config)) {
      CHECK(setting.sentence.size() > 9);
      CHECK(has(help.str(), setting.key + " = "));
      CHECK(keys.insert(setting.key).second);
    }
    CHECK(has(help.str(), "optimizer.beta1 = 0.9   (a number, at least 0 and below 1)"));
    CHECK(has(help.str(), "(linear, sqrt or 1-sqrt)"));
    CHECK(has(help.str(), "covenant-72b"));
  }

  TEST_CASE("--set takes each type, overrides the file, and the last one wins") {
    const RunConfig config =
        with({"train.steps=7", "train.steps=1e3", "optimizer.lr=2e-4", "data.shuffle=false", "train.dtype=bf16",
              "optimizer.cooldown=1-sqrt", "data.folder=x=y", "run.folder=12"});
    CHECK(config.train.steps == 1000);
    CHECK(config.optimizer.lr == 2e-4);
    CHECK_FALSE(config.data.shuffle);
    CHECK(config.train.dtype == DTypeChoice::bf16);
    CHECK(config.optimizer.cooldown == Cooldown::one_minus_sqrt);
    CHECK(config.data.folder == "x=y");
    CHECK(config.run.folder == "12");
    CHECK(load_config("", {"model=tiny", "data.folder=d"}).model == named_size("tiny"));
  }

  TEST_CASE("whole numbers may be written with an exponent") {
    CHECK(Written(R"({"model": "gpt2", "data": {"folder": "d"}, "train": {"steps": 2e3}})").load().train.steps == 2000);
  }

  TEST_CASE("a model by name, by fields, and by both") {
    const auto model = [](const std::string& text, const std::vector<std::string>& sets = {}) {
      return Written("{\"data\": {\"folder\": \"d\"}, \"model\": " + text + "}").load(sets).model;
    };
    ModelConfig expected = named_size("llama3-8b");
    expected.layers = 4;
    CHECK(model(R"({"base": "llama3-8b", "layers": 4})") == expected);
    CHECK(model(R"("llama3-8b")", {"model.layers=4"}) == expected);
    CHECK(model(R"({"base": "gpt2"})", {"model.base=llama3-8b", "model.layers=4"}) == expected);
    CHECK(model(R"({"base": "gpt2", "layers": 3})", {"model=llama3-8b"}) == named_size("llama3-8b"));

    const ModelConfig llama = model(R"({"width": 256, "layers": 2, "heads": 8, "vocabulary": 500, "context": 64})");
    CHECK(llama.kv_heads == 8);
    CHECK(llama.head_width == 32);
    CHECK(llama.mlp == 704);
    const ModelConfig gpt2 =
        model(R"({"family": "gpt2", "width": 256, "layers": 2, "heads": 8, "vocabulary": 500, "context": 64})");
    CHECK(gpt2.norm == Norm::layer);
    CHECK(gpt2.mlp == 1024);
    CHECK(gpt2.tied);
    const ModelConfig narrow = model(R"({"base": "llama2-7b", "width": 1024, "heads": 16})");
    CHECK(narrow.head_width == 64);
    CHECK(narrow.kv_heads == 16);
    const ModelConfig grouped = model(R"({"base": "llama3-8b", "heads": 16})");
    CHECK(grouped.kv_heads == 8);
    CHECK(grouped.head_width == 256);
    const ModelConfig yarn =
        model(R"({"base": "llama3-8b", "rope": {"kind": "yarn", "factor": 4, "original_context": 8192}})");
    CHECK(yarn.rope.attention_factor == yarn_attention_factor(4));
  }

  TEST_CASE("a model from a Hugging Face folder") {
    const TemporaryFolder folder;
    nlohmann::json written = to_huggingface(named_size("tiny"), "float32");
    written.erase("rms_norm_eps");
    put(folder / "config.json", written.dump());
    const std::string hf = folder / "";
    const RunConfig config = load_config("", {"model=hf:" + hf, "data.folder=d"});
    CHECK(config.model.width == 64);
    CHECK(config.notes.size() == 1);
    CHECK(config.origin.at("model.width") == "hf:" + hf);
    CHECK(config.checkpoint.initial.empty());
    CHECK(has(error_of([&] {
                load_config("", {"model=hf:" + (folder / "none"), "data.folder=d"});
              }),
              "none/config.json: No such file or directory"));
    put(folder / "config.json", "{");
    CHECK(has(error_of([&] { load_config("", {"model=hf:" + hf, "data.folder=d"}); }), "config.json:1:2: "));
  }

  TEST_CASE("what was not given is derived") {
    const RunConfig config = with(
        {"model=tiny", "train.steps=50", "train.global_batch=24", "optimizer.lr=0.5", "optimizer.schedule=wsd"}, 2);
    CHECK(config.data.sequence == 256);
    CHECK(config.mesh.dp == 2);
    CHECK(config.train.micro_batch == 6);
    CHECK(config.optimizer.min_lr == 0.05);
    CHECK(config.optimizer.warmup_steps == 5);
    CHECK(config.optimizer.cooldown_steps == 10);
    CHECK(with({"train.steps=1"}).optimizer.warmup_steps == 0);
    CHECK(with({"train.steps=10", "optimizer.warmup_steps=9", "optimizer.schedule=wsd"}).optimizer.cooldown_steps == 1);
    CHECK(with({"train.micro_batch=4"}, 8).train.micro_batch == 4);
  }

  TEST_CASE("a file of the same name as its model keeps what it gives") {
    const TemporaryFolder folder;
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(folder / "");
    put("tiny", R"({"model": {"base": "tiny", "width": 128, "head_width": 16}, "data": {"folder": "d"}})");
    const RunConfig config = load_config("tiny", {});
    std::filesystem::current_path(before);
    CHECK(config.model.head_width == 16);
  }

  TEST_CASE("the origin of each value that is not the default") {
    const RunConfig config = with({"model=tiny", "train.steps=50", "train.seed=1"}, 2);
    CHECK(config.origin.at("train.steps") == "--set");
    CHECK(config.origin.count("train.seed") == 0); // given, but the default
    CHECK(config.origin.at("model.width") == "tiny");
    CHECK(config.origin.at("mesh.dp") == "derived: the ranks that were started, over the other axes");
    CHECK(has(config.origin.at("data.folder"), "demo.json"));
    std::ostringstream out;
    print_origins(config, out);
    CHECK(has(out.str(), "train.steps = 50 "));
    CHECK(has(out.str(), "derived: a tenth of train.steps\n"));
    CHECK_FALSE(has(out.str(), "optimizer.beta1"));
  }

  TEST_CASE("syntax errors name file, line and column") {
    CHECK(has(error_in("{\n  \"model\": \"gpt2\",\n  \"data\": }"), "demo.json:3:11: syntax error"));
    CHECK(has(error_in("{} {}"), "demo.json:1:4: "));
    CHECK(has(error_in(""), "demo.json: is empty"));
    CHECK(has(error_in("\n \n"), "demo.json: is empty"));
    CHECK(has(error_in(R"({"train": {"steps": 1, "steps": 2}})"), "the key \"steps\" is given twice"));
    CHECK(has(error_in(std::string(200, '[')), "nested deeper than 100"));
    CHECK(has(error_in(R"({"train": {"steps": 1e999}})"), "demo.json: number overflow"));
    CHECK(has(error_in("[1]"), "demo.json: holds array, but must be an object"));
    CHECK(has(error_of([] { load_config("/nowhere/x.json", {}); }), "cannot read /nowhere/x.json: No such file"));
    const TemporaryFolder folder;
    CHECK(has(error_of([&] { load_config(folder / "", {}); }), "it is not a regular file"));
  }

  TEST_CASE("JSON of files without comments refuses them") {
    CHECK(has(error_of([] { parse_json("{} // x", "there"); }), "there:1:4: "));
  }

  TEST_CASE("unknown keys name file, key, value and the nearest known name") {
    const auto error = [](const std::string& part) {
      return error_in("{\"model\": \"gpt2\", \"data\": {\"folder\": \"d\"}, " + part + "}");
    };
    const std::string unknown = error(R"("train": {"stpes": 5})");
    CHECK(has(unknown, "demo.json: unknown key \"train.stpes\" (value 5); did you mean \"train.steps\"?"));
    CHECK(has(error(R"("lr": 1)"), "did you mean \"optimizer.lr\"?"));
    CHECK(has(error(R"("optimiser": {"lr": 1})"), "\"optimiser\""));
    CHECK(has(error(R"("train": {"unheard_of": {"a": [1]}})"), "known are train.steps, train.global_batch"));
    CHECK(has(error(R"("entirely": 1)"), "`triax help config` lists all"));
    CHECK(has(error(R"("train": 5)"), "train is 5, but must be an object of settings"));
    CHECK(has(error(R"("train.steps": 5, "train": {"steps": 6})"), "train.steps is given twice"));
    CHECK(has(error_with({"train.step=5"}),
              "--set: unknown key \"train.step\" (value \"5\"); did you mean \"train.steps\"?"));
    CHECK(has(error_with({"train=5"}), "--set: train is a group of settings"));
    CHECK(has(error_with({"train.steps"}), "--set train.steps: must be KEY=VALUE"));
    CHECK(has(error_with({"=5"}), "--set =5: must be KEY=VALUE"));
  }

  TEST_CASE("ill-typed values name key, value and what is wanted") {
    const auto error = [](const std::string& part) {
      return error_in("{\"model\": \"gpt2\", \"data\": {\"folder\": \"d\"}, " + part + "}");
    };
    CHECK(
        has(error(R"("train": {"steps": "many"})"), "demo.json: train.steps is \"many\", but must be a whole number"));
    CHECK(has(error(R"("train": {"steps": 1.5})"), "train.steps is 1.5, but must be a whole number"));
    CHECK(has(error(R"("train": {"steps": 18446744073709551615})"), "must be a whole number"));
    CHECK(has(error(R"("train": {"steps": null})"), "train.steps is null"));
    CHECK(has(error(R"("train": {"dtype": "fp16"})"), "train.dtype is \"fp16\", but must be auto, f32 or bf16"));
    CHECK(has(error(R"("train": {"dtype": 1})"), "train.dtype is 1"));
    CHECK(has(error(R"("optimizer": {"lr": "1e-4"})"), "optimizer.lr is \"1e-4\", but must be a number"));
    CHECK(has(error(R"("optimizer": {"stochastic_rounding": 1})"), "must be true or false"));
    CHECK(has(error(R"("run": {"folder": 3})"), "run.folder is 3, but must be a string"));
    CHECK(has(error(R"("run": {"folder": {"a": 3}})"), "run.folder is {\"a\":3}, but must be a string"));
    for (const char* set :
         {"train.steps=", "train.steps=1x", "train.steps= 1", "train.steps=1.5", "train.steps=1e30",
          "optimizer.lr=", "optimizer.lr=fast", "data.shuffle=yes", "train.dtype=fp16", "data.folder=\xff"})
      CHECK(has(error_with({set}), ", but must be "));
  }

  TEST_CASE("limits are stated") {
    CHECK(has(error_with({"train.steps=0"}), "--set: train.steps is 0, but must be at least 1"));
    CHECK(has(error_with({"optimizer.beta2=1"}), "optimizer.beta2 is 1.0, but must be at least 0 and below 1"));
    CHECK(has(error_with({"optimizer.lr=0"}), "must be above 0"));
    CHECK(has(error_with({"optimizer.lr=nan"}), "optimizer.lr is nan, but must be a finite number, above 0"));
    CHECK(has(error_with({"optimizer.lr=inf"}), "optimizer.lr is inf, but must be a finite number, above 0"));
    CHECK(has(error_with({"model.init_std=-inf"}), "model.init_std is -inf, but must be a finite number"));
    CHECK(has(error_with({"optimizer.clip=-1"}), "optimizer.clip is -1.0"));
    CHECK(has(error_with({"mesh.dp=1e7"}), "mesh.dp is 10000000"));
    RunConfig config = with({});
    config.train.steps = -1;
    CHECK(has(error_of([&] { validate(config); }), "train.steps is -1, but must be at least 1"));
  }

  TEST_CASE("limits hold for the float that is used") {
    CHECK(has(error_with({"optimizer.eps=1e-50"}),
              "optimizer.eps is 1e-50 (0 in single precision, in which it is used), but must be above 0"));
    CHECK(has(error_with({"model.norm_eps=1e-50"}), "model.norm_eps is 1e-50 (0 in single"));
    CHECK(has(error_with({"optimizer.lr=1e300"}), "but must be a finite number"));
    CHECK(has(error_with({"optimizer.beta2=0.999999999999"}), "(1 in single precision"));
    CHECK(has(error_in(R"({"model": "gpt2", "data": {"folder": "d"}, "optimizer": {"weight_decay": 1e39}})"),
              "but must be a finite number"));
    CHECK(with({"optimizer.eps=1e-30"}).optimizer.eps == 1e-30);
  }

  TEST_CASE("a size that is given as 0 is not called missing") {
    CHECK(has(error_with({"model.layers=0"}), "--set: model.layers is 0, but must be at least 1"));
    CHECK(has(error_in(R"({"model": {"base": "gpt2", "heads": -1}, "data": {"folder": "d"}})"),
              "demo.json: model.heads is -1, but must be at least 1"));
  }

  TEST_CASE("threads are held to the machine only where it will run") {
    const std::string many = concat("threads=", most_threads() + 1);
    if (most_threads() < 4096) CHECK(with({many}).threads == most_threads() + 1);
    if (most_threads() < 4096) CHECK(has(error_with({many}, 1), "four for each core of this machine"));
    CHECK(with({"threads=1"}, 1).threads == 1);
  }

  TEST_CASE("an unknown size is answered in whole sentences") {
    CHECK(has(error_of([] { named_size("gtp2"); }), "\"gtp2\"; did you mean \"gpt2\"? Known are tiny, "));
    CHECK(has(error_of([] { named_size("entirely-else"); }), "\"entirely-else\"; known are tiny, "));
  }

  TEST_CASE("fields that contradict each other are refused with the arithmetic") {
    CHECK(has(error_in(R"({"data": {"folder": "d"}})"), "demo.json: model is not given"));
    CHECK(has(error_in(R"({"model": {}, "data": {"folder": "d"}})"), "model is not given"));
    CHECK(has(error_in(R"({"model": "", "data": {"folder": "d"}})"), "model is \"\""));
    CHECK(has(error_in(R"({"model": 7, "data": {"folder": "d"}})"), "model is 7"));
    CHECK(has(error_in(R"({"model": {"base": 7}, "data": {"folder": "d"}})"), "model.base is 7"));
    CHECK(has(error_in(R"({"model": "gtp2", "data": {"folder": "d"}})"), "did you mean \"gpt2\"?"));
    CHECK(has(error_in(R"({"model": {"width": 64}, "data": {"folder": "d"}})"), "model.layers is not given"));
    CHECK(has(error_in(R"({"model": "gpt2"})"), "data.folder is not given"));
    CHECK(has(error_with({"model="}), "--set: model is \"\""));
    CHECK(has(error_with({"model=tiny", "model.heads=5"}),
              "model.width is 64 and model.heads is 5: 64 is no multiple of 5"));
    CHECK(has(error_with({"model=tiny", "model.kv_heads=3"}), "model.heads is 4 and model.kv_heads is 3"));
    CHECK(has(error_with({"run.folder="}), "run.folder is \"\""));
    CHECK(has(error_with({"checkpoint.resume="}), "checkpoint.resume is \"\""));
    CHECK(has(error_with({"data.sequence=1025"}),
              "data.sequence is 1025, but must not exceed model.context, which is 1024"));
    CHECK(has(error_with({"train.micro_batch=5"}), "= 5 * 1 = 5: 32 = 6 * 5 + 2"));
    CHECK(has(error_with({"train.micro_batch=64"}), "= 64 * 1 = 64: 32 = 0 * 64 + 32"));
    CHECK(has(error_with({}, 3), "must be a multiple of mesh.dp, which is 3: 32 = 10 * 3 + 2"));
    CHECK(has(error_with({"train.global_batch=2"}, 3), "2 = 0 * 3 + 2"));
    CHECK(has(error_with({"train.steps=1e12", "train.global_batch=1e9"}), "more than can be counted"));
    CHECK(has(error_with({"optimizer.min_lr=1"}), "optimizer.min_lr is 1, but must not exceed optimizer.lr"));
    CHECK(has(error_with({"train.steps=10", "optimizer.warmup_steps=11"}), "optimizer.warmup_steps is 11"));
    CHECK(has(
        error_with(
            {"train.steps=10", "optimizer.schedule=wsd", "optimizer.warmup_steps=6", "optimizer.cooldown_steps=5"}),
        "optimizer.warmup_steps 6 + optimizer.cooldown_steps 5 = 11, but must not exceed train.steps, which is 10"));
    CHECK(has(error_with({"mesh.pod=2"}), "mesh.pod is 2, but only 1 is offered"));
    CHECK(has(error_with({"mesh.cp=3", "data.sequence=64"}),
              "data.sequence is 64, but must be a multiple of 2 * mesh.cp = 6: each rank has two chunks"));
    CHECK(has(error_with({"mesh.cp=3", "data.sequence=64", "context.exchange=all_to_all"}),
              "data.sequence is 64, but must be a multiple of mesh.cp = 3"));
    CHECK(has(error_with({"mesh.cp=2", "train.repro=true"}), "train.repro sums gradients sequence by sequence"));
    CHECK(has(error_with({"model=tiny", "mesh.cp=2", "mesh.tp=2", "model.heads=4", "model.kv_heads=2",
                          "data.sequence=64", "context.exchange=all_to_all"}),
              "parts 2 heads and 1 key/value heads of a tensor-parallel rank among mesh.cp 2 ranks, and 1 is no "
              "multiple of 2; choose ring"));
    CHECK(has(error_with({"mesh.dp=4"}, 2), "mesh.dp is 4, so 4 ranks are needed, but 2 were started: mpirun -n 4"));
  }

  TEST_CASE("implementations are chosen by the name of an operation, a norm by either name") {
    const RunConfig plain = load_config("", {"model=tiny", "data.folder=d"});
    CHECK(plain.kernels.at("norm") == kReference);
    CHECK(plain.kernels.at("attention") == "auto");
    CHECK(plain.kernels.count("norm_backward") == 0);
    for (const char* name : {"norm", "rmsnorm", "layernorm"})
      CHECK(load_config("", {"model=tiny", "data.folder=d", concat("kernels.", name, "=mine")}).kernels.at("norm") ==
            "mine");
    RunConfig config = plain;
    config.kernels["norm"] = "mine";
    CHECK(has(error_of([&] { choose_kernels(config); }), "kernels.norm is 'mine', which this binary does not have"));
    CHECK(has(error_with({"kernels.rmsnrm=mine"}), "kernels.rmsnrm"));
    config = plain;
    config.kernels["attention"] = "cudnn";
    choose_kernels(config);
    const auto transport = Transport::ghost(0, 1);
    const auto plan = [&](const char* target) {
      config.data.document_mask = false;
      return make_plan(Target::parse(target), 1, Mesh({1, 1, 1, 1, 1}, 0, 1), config);
    };
    CHECK(has(error_of([&] { plan("cpu"); }), "kernels.attention is 'cudnn', which cpu does not have"));
    const Plan gpu = plan("sm_90a");
    CHECK(gpu.find("train")->signatures.size() > 0);
    choose_kernels(plain);
  }

  TEST_CASE("attention is planned by cuDNN where the run can use it, whatever this binary has") {
    const auto kernel = [](const char* target, std::vector<std::string> sets) {
      sets.insert(sets.end(), {"model=tiny", "data.folder=d", "train.dtype=bf16", "data.sequence=64"});
      const auto transport = Transport::ghost(0, 1);
      const Plan plan = make_plan(Target::parse(target), 1, Mesh({1, 1, 1, 1, 1}, 0, 1), load_config("", sets));
      for (const Signature& s : plan.find("train")->signatures)
        if (s.op.kind->name == std::string("attention_forward")) return s.description.kernels.front();
      return std::string("none");
    };
    CHECK(kernel("sm_90a", {"data.document_mask=false"}) == "cudnn");
    CHECK(kernel("sm_90a", {}) != "cudnn");
    CHECK(kernel("sm_90a", {"data.document_mask=false", "kernels.attention=triax"}) != "cudnn");
    CHECK(kernel("cpu", {"data.document_mask=false"}) != "cudnn");
  }

} // TEST_SUITE
