// The trainer on its planned arena: what a step takes, what it leaves alone, and what it computes.
#include "kernels/matmul.h"
#include "tests/helpers.h"
#include "train/trainer.h"
#include "train/weights.h"
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <new>

using namespace triax;

namespace {

std::atomic<int64_t> large_allocations = 0;
constexpr size_t kLarge = 16 << 10; ///< above what a step's bookkeeping takes, below any of its tensors

std::vector<std::string> with_model(const std::vector<std::string>& more, Dtype dtype) {
  std::vector<std::string> sets{"data.folder=unused",   "data.sequence=24",     "model.width=64",
                                "model.layers=2",       "model.heads=4",        "model.kv_heads=2",
                                "model.mlp=96",         "model.vocabulary=211", "model.context=24",
                                "train.global_batch=4", "train.micro_batch=2",  concat("train.dtype=", name_of(dtype))};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

/// One rank of a run; of several, what needs the others cannot be run.
struct World {
  RunConfig config;
  std::unique_ptr<Transport> transport;
  Mesh mesh;
  Plan plan;
  std::unique_ptr<Device> device;
  std::unique_ptr<Trainer> trainer;

  explicit World(const std::vector<std::string>& more, Dtype dtype = Dtype::f32, int rank = 0, int ranks = 1)
      : config(load_config("", with_model(more, dtype), ranks)), transport(Transport::ghost(rank, ranks)),
        mesh(mesh_shape(config), rank, ranks) {
    plan = make_plan({}, 2, mesh, config);
    device = Device::open({}, 2);
    device->follow(plan);
    trainer = std::make_unique<Trainer>(*device, *transport, mesh, config, dtype);
    trainer->initialise();
    trainer->state().learning_rate = 1e-2f;
  }
  /// Inputs by a rule: position n of micro-batch m. A label of -1 does not count.
  template <class Label> void feed(Label label) {
    const int64_t rows = config.train.micro_batch * config.data.sequence;
    for (int64_t m = 0; m < trainer->accumulation(); ++m) {
      const auto in = trainer->inputs(m);
      for (int64_t n = 0; n < rows; ++n) {
        in.tokens[n] = int32_t(n % 7), in.labels[n] = label(m, n), in.document_start[n] = 0;
      }
      int64_t at = 0;
      for (int32_t token = 0; token < 7; ++token)
        for (int64_t n = token; n < rows; n += 7) in.order[at++] = int32_t(n);
    }
  }
  void step(int64_t number) {
    trainer->state().step = number;
    trainer->state().moment1_scale = float(1 / (1 - std::pow(0.9, double(number))));
    trainer->state().moment2_scale = float(1 / (1 - std::pow(0.95, double(number))));
    trainer->train();
  }
  std::vector<float> read(const Tensor& t) {
    std::vector<float> values(size_t(t.size()));
    device->read(t, values.data());
    return values;
  }
};

/// FOLDER/model.safetensors of this rank alone: what others own is 0.
void write_weights(World& w, const std::string& folder) {
  Publication out(folder);
  SafetensorsWriter writer(out, "model", stored_tensors(w.trainer->table(), "", w.trainer->dtype()));
  store(&writer, *w.transport, *w.device, w.trainer->layout(), w.trainer->weights(), w.trainer->is_first_owner());
  writer.close();
  out.publish();
}

} // namespace

// All of this test binary's large allocations are counted. (g++ sees free in an inlined delete and warns, although new
// is malloc.)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  if (bytes >= kLarge) ++large_allocations;
  return std::malloc(bytes ? bytes : 1);
}
void* operator new(std::size_t bytes) {
  if (void* at = operator new(bytes, std::nothrow)) return at;
  throw std::bad_alloc();
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete(void* at, const std::nothrow_t&) noexcept { std::free(at); }

TEST_SUITE("train_trainer") {

  TEST_CASE("after the plan is taken, a step allocates nothing") {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      World w({}, dtype);
      w.feed([](int64_t, int64_t n) { return int32_t(n % 5); });
      w.step(1); // libraries set themselves up
      w.trainer->evaluate();
      const int64_t before = large_allocations;
      for (int64_t s = 2; s < 5; ++s) w.step(s);
      w.trainer->evaluate();
      CHECK(large_allocations == before);
    }
  }

  TEST_CASE("the arena is no larger than the peak and what packing costs") {
    World w({"model.layers=6"});
    const Plan::Peak peak = w.plan.peak(Space::device);
    CHECK(peak.total <= w.plan.bytes[int(Space::device)]);
    CHECK(double(w.plan.bytes[int(Space::device)]) <= 1.05 * double(peak.total));
    CHECK(peak.bytes[int(Purpose::weights)] >= w.trainer->table().count() * 4);
  }

  TEST_CASE("the mean is over counted tokens of the whole batch, not a mean of means") {
    // One micro-batch counts 4 tokens, the other all 48: as if it were one batch of 52.
    const auto label = [](int64_t m, int64_t n) { return m == 0 && n >= 4 ? -1 : int32_t(n % 5); };
    World two({"optimizer.clip=0", "optimizer.weight_decay=0"});
    World one({"optimizer.clip=0", "optimizer.weight_decay=0", "train.micro_batch=4"});
    two.feed(label);
    one.feed([&](int64_t, int64_t n) { return label(n / 48, n % 48); });
    // The same tokens in one micro-batch of four sequences.
    const auto from = two.trainer->inputs(0), more = two.trainer->inputs(1), to = one.trainer->inputs(0);
    std::copy_n(from.tokens, 48, to.tokens);
    std::copy_n(more.tokens, 48, to.tokens + 48);
    int64_t at = 0;
    for (int32_t token = 0; token < 7; ++token)
      for (int64_t n = 0; n < 96; ++n)
        if (to.tokens[n] == token) to.order[at++] = int32_t(n);
    two.step(1);
    one.step(1);
    CHECK(two.trainer->scalars()[kTokenCount] == 52);
    CHECK(two.trainer->scalars()[kLossSum] == doctest::Approx(one.trainer->scalars()[kLossSum]).epsilon(1e-6));
    CHECK(two.trainer->scalars()[kGradientNorm2] ==
          doctest::Approx(one.trainer->scalars()[kGradientNorm2]).epsilon(1e-5));
  }

  TEST_CASE("a batch without a counted token changes nothing and gives no NaN") {
    World w({});
    w.feed([](int64_t, int64_t) { return -1; });
    const auto before = w.read(w.trainer->weights());
    w.step(1);
    CHECK(w.trainer->scalars()[kTokenCount] == 0);
    CHECK(w.trainer->scalars()[kLossSum] == 0);
    CHECK(w.read(w.trainer->weights()) == before);
  }

  TEST_CASE("the gradient is clipped to the global norm") {
    World w({"optimizer.clip=0.01"});
    w.feed([](int64_t, int64_t n) { return int32_t(n % 5); });
    w.step(1);
    const float* s = w.trainer->scalars();
    const double capacity = 4 * 24, norm = std::sqrt(double(s[kGradientNorm2]));
    REQUIRE(norm > 0.01);
    CHECK(s[kGradientScale] == doctest::Approx(capacity / s[kTokenCount] * 0.01 / norm).epsilon(1e-5));
  }

  TEST_CASE("initial weights depend on the seed and the parameter alone, and masters agree with them") {
    World a({}), b({"train.micro_batch=4"}), other({"train.seed=2"}), half({}, Dtype::bf16);
    CHECK(a.read(a.trainer->weights()) == b.read(b.trainer->weights()));
    CHECK(a.read(a.trainer->weights()) != other.read(other.trainer->weights()));
    CHECK(a.read(a.trainer->weights()) == half.read(half.trainer->master()));
    const Parameter& p = *a.trainer->table().find(Role::qkv, 1);
    double sum = 0, squares = 0;
    for (float v : a.read(a.trainer->weights().slice(0, p.offset, p.size()))) sum += v, squares += double(v) * v;
    CHECK(std::abs(sum / double(p.size())) < 4 * 0.02 / std::sqrt(double(p.size())));
    CHECK(std::sqrt(squares / double(p.size())) == doctest::Approx(0.02).epsilon(0.03));
  }

  TEST_CASE("every layout has the initial weights of one rank, and files hold the same whoever writes them") {
    const test::TemporaryFolder scratch;
    World one({"model.vocabulary=101", "train.global_batch=16", "train.micro_batch=1"});
    write_weights(one, scratch / "one");
    const std::string whole = test::content((scratch / "one") + "/model.safetensors");
    const std::vector<std::vector<std::string>> layouts{
        {"mesh.dp=2"},
        {"mesh.dp=4", "zero.stage=1"},
        {"mesh.dp=4", "zero.stage=3", "zero.group=2"},
        {"mesh.tp=2"},
        {"mesh.tp=4", "comm.tensor_chunks=2"},
        {"mesh.tp=4", "mesh.dp=4", "zero.stage=2"},
        {"mesh.dp=2", "mesh.tp=2", "zero.stage=3", "mesh.order=pod,tp,pp,cp,dp"}};
    for (const auto& layout : layouts) {
      CAPTURE(layout);
      std::vector<std::string> sets{"model.vocabulary=101", "train.global_batch=16", "train.micro_batch=1"};
      sets.insert(sets.end(), layout.begin(), layout.end());
      std::string together;
      const int64_t ranks = mesh_shape(load_config("", with_model(sets, Dtype::f32))).ranks();
      for (int rank = 0; rank < ranks; ++rank) {
        World w(sets, Dtype::f32, rank, int(ranks));
        const std::string folder = scratch / concat("rank", rank);
        write_weights(w, folder);
        const std::string mine = test::content(folder + "/model.safetensors");
        if (together.empty()) together = mine;
        REQUIRE(together.size() == mine.size());
        for (size_t i = 0; i < mine.size(); ++i) together[i] = char(together[i] | mine[i]);
        // What a rank reads from one rank's file is what it had made itself.
        const auto own = w.read(w.trainer->weights());
        w.device->write(w.trainer->weights(), std::vector<float>(own.size(), 9.0f).data());
        restore(SafetensorsFolder(scratch / "one"), "", *w.device, w.trainer->layout(), w.trainer->weights());
        auto again = w.read(w.trainer->weights());
        for (size_t e = 0; e < own.size(); ++e)
          if (again[e] == 9.0f) again[e] = 0; // between parameters
        CHECK(again == own);
        std::filesystem::remove_all(folder);
      }
      CHECK(together == whole);
    }
  }

  TEST_CASE("a named size is planned for a GPU on a machine without one") {
    const auto transport = Transport::ghost(0, 8);
    RunConfig c = load_config(
        "", {"model=llama3-8b", "data.folder=unused", "train.global_batch=8", "mesh.dp=8", "data.sequence=4096"}, 8);
    const Plan plan = make_plan(Target::parse("sm_90a"), 1, Mesh(mesh_shape(c), 0, 8), c);
    const int64_t n = ParamTable(c.model).count();
    const Plan::Peak peak = plan.peak(Space::device);
    CHECK(peak.bytes[int(Purpose::weights)] >= 2 * n);
    CHECK(peak.bytes[int(Purpose::gradients)] >= 4 * n);
    CHECK(peak.bytes[int(Purpose::optimizer)] >= 8 * n);
    CHECK(plan.find("train")->flops() > 6.0 * double(n) * 4096);
  }

  TEST_CASE("dtype auto is bf16 only where the hardware has it") {
    CHECK(choose_dtype(DTypeChoice::automatic, {}) == (cpu_has_bf16() ? Dtype::bf16 : Dtype::f32));
    CHECK(choose_dtype(DTypeChoice::automatic, Target::parse("sm_80")) == Dtype::bf16);
    CHECK(choose_dtype(DTypeChoice::f32, Target::parse("sm_80")) == Dtype::f32);
  }

} // TEST_SUITE
