// Receipts: what they hold, that the losses' hash tells runs apart, and which runs `bench compare` takes for alike.
#include "tests/helpers.h"
#include "train/build_info.h"
#include "train/commands.h"
#include "train/receipt.h"
#include "train/receipt_compare.h"
#include <cmath>
#include <doctest/doctest.h>
#include <iostream>
#include <limits>

using namespace triax;
using namespace triax::test;

namespace {

using json = nlohmann::json;

/// A folder with data of the given content hash, and receipts of runs over it.
struct Runs {
  TemporaryFolder folder;
  explicit Runs(const std::string& hash = "00000000000000aa") { data("data", hash); }

  void data(const std::string& name, const std::string& hash) const {
    std::filesystem::create_directories(folder / name);
    const json shard = {{"file", "t.shard"}, {"content_hash", hash}};
    put(folder / name + "/dataset.json",
        json({{"splits", {{"train", {{"tokens", 1000}, {"shards", json::array({shard})}}}}}}).dump());
  }
  /// Trains `losses` from step `first` on; returns the receipt's path.
  std::string run(const std::string& name, const std::vector<double>& losses, std::vector<std::string> sets = {},
                  int64_t first = 1, double tokens_per_second = 1000, int ranks = 1) const {
    std::vector<std::string> all{"model=gpt2", "data.folder=" + (folder / "data"), "run.folder=" + (folder / name)};
    all.insert(all.end(), sets.begin(), sets.end());
    const RunConfig config = load_config("", all, ranks);
    MeshShape shape;
    shape.dp = ranks;
    Receipt receipt(config, Mesh(shape, 0, ranks), ranks, {}, 2, Dtype::f32);
    int64_t step = first;
    for (double loss : losses) receipt.step(step++, loss);
    std::filesystem::create_directories(folder / name);
    const std::string path = folder / name + "/receipt.json";
    receipt.write(path, {{"tokens_per_s", tokens_per_second}, {"mfu", 0.5}});
    return path;
  }
  ReceiptComparison compare(const std::string& a, const std::string& b) const {
    return compare_receipts(read_receipt(a), read_receipt(b));
  }
};

std::vector<std::string> paths(const std::vector<ReceiptComparison::Difference>& differences) {
  std::vector<std::string> all;
  for (const auto& d : differences) all.push_back(d.path);
  return all;
}

std::vector<double> losses_of(int64_t count, int64_t wrong_from = INT64_MAX) {
  std::vector<double> losses;
  for (int64_t i = 1; i <= count; ++i) losses.push_back(10.0 / double(i) + (i >= wrong_from ? 1e-15 : 0));
  return losses;
}

/// What `triax bench compare` prints; an error's sentence goes to `error`.
std::string said_by_compare(const std::string& words, std::string& error) {
  CLI::App app;
  add_compare(&app);
  std::ostringstream said;
  std::streambuf* before = std::cout.rdbuf(said.rdbuf());
  error = error_of([&] { app.parse("compare " + words); });
  std::cout.rdbuf(before);
  return said.str();
}

} // namespace

TEST_SUITE("train_receipt") {

  TEST_CASE("a run's receipt says what ran, on what, with which data, and how it ended") {
    const Runs runs;
    const json r = read_receipt(runs.run("a", {4.0, 3.5}, {"train.seed=5", "data.seed=6", "mesh.dp=2"}, 1, 1234, 2));
    CHECK(r["receipt"] == "train");
    CHECK(r["binary"]["hash"].get<std::string>().size() == 16);
    CHECK(r["binary"]["sources"].get<std::string>().size() == 64);
    CHECK(r["binary"]["sources"] == kBuildInfo.sources);
    CHECK(r["binary"]["compiler"].get<std::string>().size() > 4);
    for (const char* fact : {"cpu", "isa", "system", "target"}) CHECK(r["machine"][fact].get<std::string>().size() > 1);
    for (const char* fact : {"cores", "memory_bytes", "threads"}) CHECK(r["machine"][fact].get<int64_t>() > 0);
    CHECK(has(r["libraries"]["oneDNN"].get<std::string>(), "."));
    CHECK(r["ranks"] == 2);
    CHECK(r["mesh"]["shard"] == 2);
    CHECK(r["dtype"] == "f32");
    CHECK(r["seeds"] == json({{"train", 5}, {"data", 6}}));
    CHECK(r["data"]["tokens"] == 1000);
    CHECK(r["configuration"]["train"]["seed"] == 5);
    CHECK(r["losses"]["losses"] == json({4.0, 3.5}));
    CHECK(r["losses"]["last"] == 3.5);
    CHECK(r["result"]["tokens_per_s"] == 1234.0);
  }

  TEST_CASE("the hash of losses is of their bits and steps; many are thinned evenly") {
    const auto record = [](const std::vector<double>& losses, int64_t first = 1) {
      LossRecord r;
      for (double loss : losses) r.add(first++, loss);
      return json(r.to_json());
    };
    CHECK(record({1, 2, 3})["hash"] == record({1, 2, 3})["hash"]);
    CHECK(record({1, 2, 3})["hash"] != record({1, 3, 2})["hash"]);
    CHECK(record({1, 2, 3})["hash"] != record({1, 2, std::nextafter(3.0, 4.0)})["hash"]);
    CHECK(record({1, 2, 3})["hash"] != record({1, 2, 3}, 2)["hash"]);
    CHECK(record({0.0})["hash"] != record({-0.0})["hash"]);
    CHECK(record({}).is_null());
    for (int64_t first : {1, 2, 7, 8}) {
      const json many = record(losses_of(20000), first);
      CHECK(many["every"] == 8);
      const int64_t kept_first = (first + 7) / 8 * 8;
      CHECK(int64_t(many["losses"].size()) == (first + 19999) / 8 - (kept_first / 8) + 1);
      for (size_t i = 0; i < many["losses"].size(); ++i)
        REQUIRE(many["losses"][i] == 10.0 / double(kept_first + 8 * int64_t(i) - first + 1));
      CHECK(many["last_step"] == first + 19999);
    }
    LossRecord gap;
    gap.add(4, 1.0);
    CHECK(has(error_of([&] { gap.add(6, 1.0); }), "the loss of step 6 follows that of step 4"));
  }

  TEST_CASE("runs that differ in folders and cadence alone are alike, with a ratio of speeds") {
    const Runs runs;
    runs.data("moved", "00000000000000aa");
    const std::string a = runs.run("a", losses_of(20)),
                      b = runs.run("b", losses_of(20),
                                   {"run.log_every=7", "checkpoint.every=3", "checkpoint.keep=9",
                                    "data.folder=" + (runs.folder / "moved")},
                                   1, 1500);
    const ReceiptComparison c = runs.compare(a, b);
    CHECK(c.unlike.empty());
    CHECK(paths(c.circumstances) == std::vector<std::string>{"configuration.checkpoint.every",
                                                             "configuration.checkpoint.keep",
                                                             "configuration.data.folder", "configuration.run.folder",
                                                             "configuration.run.log_every"});
    CHECK(has(c.losses, "the same training to the bit: the losses of steps 1 to 20 have the hash "));
    REQUIRE(c.speeds.size() == 1);
    CHECK(c.speeds[0].ratio == 1.5);
    CHECK(c.speeds[0].tokens);
  }

  TEST_CASE("runs of other configuration, seeds, data, ranks or measurement are unlike, each difference by its path") {
    const Runs runs;
    const std::string a = runs.run("a", losses_of(20));
    const auto unlike = [&](const std::string& b) { return runs.compare(a, b).unlike; };
    const auto lr = unlike(runs.run("b", losses_of(20), {"optimizer.lr=0.5", "optimizer.min_lr=3e-5"}));
    REQUIRE(paths(lr) == std::vector<std::string>{"configuration.optimizer.lr"});
    CHECK(lr[0].a == "0.0003");
    CHECK(lr[0].b == "0.5");
    CHECK(paths(unlike(runs.run("b", losses_of(20), {"train.seed=9"}))) ==
          std::vector<std::string>{"configuration.train.seed", "seeds.train"});
    CHECK(paths(unlike(runs.run("b", losses_of(20), {"train.micro_batch=4"}, 1, 1000, 2))) ==
          std::vector<std::string>{"configuration.mesh.dp", "configuration.train.micro_batch", "ranks", "mesh.shard"});
    runs.data("data", "00000000000000bb");
    CHECK(paths(unlike(runs.run("b", losses_of(20)))) == std::vector<std::string>{"data.content"});
    const Receipt bench("bench kernels", {{"name", "rope"}}, 1, 1, {}, 2);
    bench.write(runs.folder / "kernels.receipt", json::array());
    const auto other = unlike(runs.folder / "kernels.receipt");
    CHECK(other.front().path == "receipt");
    CHECK(other.back().b == "absent");
  }

  TEST_CASE("long values that begin alike are told apart") {
    const Runs runs;
    const std::string begin(200, 'x');
    const auto with = [&](const std::string& value) {
      return json({{"receipt", "bench"}, {"configuration", {{"sets", begin + value}}}});
    };
    CHECK(compare_receipts(with("1"), with("1")).unlike.empty());
    CHECK(compare_receipts(with("1"), with("2")).unlike.size() == 1);
  }

  TEST_CASE("from when losses differ, as far as both kept them") {
    const Runs runs;
    const auto losses = [&](const std::vector<double>& a, const std::vector<double>& b, int64_t first_b = 1) {
      return runs.compare(runs.run("a", a), runs.run("b", b, {}, first_b)).losses;
    };
    CHECK(has(losses(losses_of(20), losses_of(20, 7)), "the losses differ from step 7 on: 1.428571"));
    CHECK(has(losses(losses_of(10000), losses_of(10000, 7777)), "the losses differ at step 7780, not yet at 7776: "));
    CHECK(
        has(losses(losses_of(10000), losses_of(10000, 1)), "the losses differ at step 4, the first that both kept: "));
    CHECK(has(losses(losses_of(9999), losses_of(9999, 9999)),
              "differ, as their hashes say, but in no step that both kept"));
    std::vector<double> late = losses_of(20);
    late.erase(late.begin(), late.begin() + 10);
    CHECK(losses(losses_of(20), late, 11) == "A has the losses of steps 1 to 20, B of steps 11 to 20; the losses that "
                                             "both kept, of 10 of steps 11 to 20, are equal to the bit");
    CHECK(has(losses(losses_of(20), {1.0}, 30), "there is no step whose loss both kept"));
    const double none = std::numeric_limits<double>::quiet_NaN();
    CHECK(has(losses({1, none}, {1, none}), "the same training to the bit"));
    CHECK(has(losses({1, none}, {1, 2}), "from step 2 on: null in A, 2.0 in B"));
    CHECK(has(losses({}, {1, 2}), "only B has losses"));
    CHECK(losses({}, {}) == "");
  }

  TEST_CASE("rows of benchmarks are compared by what was measured; seconds count the other way") {
    const auto receipt = [](const json& rows) {
      return json({{"receipt", "bench kernels"}, {"configuration", json::object()}, {"result", rows}});
    };
    const auto row = [](const char* kernel, double seconds) {
      return json({{"kernel", kernel}, {"dtype", "f32"}, {"shape", "[8]"}, {"seconds", seconds}});
    };
    const json failed = {{"kernel", "rope"}, {"dtype", "f32"}, {"shape", "[8]"}, {"seconds", nullptr}};
    const ReceiptComparison c = compare_receipts(receipt({row("norm", 2), row("add", 1), failed}),
                                                 receipt({row("norm", 1), row("mul", 1), failed}));
    REQUIRE(c.speeds.size() == 1);
    CHECK(c.speeds[0].name == "norm f32 [8]");
    CHECK(c.speeds[0].ratio == 2);
    CHECK(c.only_in_a == std::vector<std::string>{"add f32 [8]"});
    CHECK(c.only_in_b == std::vector<std::string>{"mul f32 [8]"});
    const json training = {
        {"model", "llama"}, {"dtype", "bf16"}, {"micro_batch", 8}, {"sequence", 512}, {"tokens_per_s", 10.0}};
    CHECK(compare_receipts(receipt(json::array({training})), receipt(json::array({training}))).speeds[0].name ==
          "llama bf16 8 x 512");
    json repro = training;
    repro["repro"] = true;
    repro["tokens_per_s"] = 4.0;
    const ReceiptComparison both =
        compare_receipts(receipt(json::array({training, repro})), receipt(json::array({repro, training})));
    REQUIRE(both.speeds.size() == 2);
    CHECK(both.speeds[1].name == "llama bf16 8 x 512 repro");
    CHECK(both.speeds[1].ratio == 1);
    CHECK(both.speeds[1].loss == "");
    json lost = training;
    for (const double loss : {2.5, 2.75}) {
      lost["loss"] = loss;
      repro = training;
      repro["loss"] = 2.5;
      CHECK(compare_receipts(receipt(json::array({repro})), receipt(json::array({lost}))).speeds[0].loss ==
            (loss == 2.5 ? "the last loss is the same to the bit" : "the last loss is 2.5 in A, 2.75 in B"));
    }
  }

  TEST_CASE("what is no receipt is refused by name") {
    const Runs runs;
    const std::string a = runs.run("a", {1, 2});
    CHECK(read_receipt(runs.folder / "a") == read_receipt(a));
    CHECK(has(error_of([&] { read_receipt(runs.folder / "none"); }), "none: there is no such file or folder"));
    CHECK(has(error_of([&] { read_receipt(runs.folder / "data"); }), "data: holds no receipt.json and no *.receipt"));
    CHECK(has(error_of([&] { read_receipt(runs.folder / "data/dataset.json"); }), "is no receipt of triax"));
    const Receipt bench("bench kernels", {{"name", "rope"}}, 1, 1, {}, 2);
    bench.write(runs.folder / "data/kernels.receipt", json::array());
    CHECK(read_receipt(runs.folder / "data")["receipt"] == "bench kernels");
    bench.write(runs.folder / "data/training-1x2.receipt", json::array());
    CHECK(has(error_of([&] { read_receipt(runs.folder / "data"); }), "holds several receipts ("));
    json damaged = read_receipt(a);
    damaged["losses"].erase("every");
    damaged["losses"]["hash"] = "0";
    CHECK(has(error_of([&] { compare_receipts(read_receipt(a), damaged); }), "a receipt is damaged"));
  }

  TEST_CASE("the command refuses unlike runs unless told to compare across") {
    const Runs runs;
    runs.run("a", losses_of(20), {}, 1, 1000);
    runs.run("b", losses_of(20), {}, 1, 1250);
    runs.run("c", losses_of(20, 5), {"train.seed=3"}, 1, 1250);
    const std::string a = runs.folder / "a", b = runs.folder / "b", c = runs.folder / "c";
    std::string error;
    std::string said = said_by_compare(a + " " + b, error);
    CHECK(error == "");
    INFO(said);
    CHECK(has(said, "the same training to the bit: the losses of steps 1 to 20"));
    CHECK(has(said, "speed  training: 1,000 tokens/s in A, 1,250 tokens/s in B; B is 1.25 times as fast"));
    CHECK(!has(said, "UNLIKE"));
    said = said_by_compare(a + " " + c, error);
    CHECK(has(error, "these runs are unlike"));
    CHECK(has(error, "\n  configuration.train.seed: 1 in A, 3 in B\n  seeds.train: 1 in A, 3 in B\n"));
    CHECK(has(error, "compare nevertheless with --across"));
    CHECK(!has(said, "speed"));
    said = said_by_compare(a + " " + c + " --across", error);
    CHECK(error == "");
    CHECK(has(said, "UNLIKE runs, compared nevertheless (--across):\n  configuration.train.seed: 1 in A, 3 in B"));
    CHECK(has(said, "the losses differ from step 5 on"));
    CHECK(has(said, "B is 1.25 times as fast"));
  }
}
