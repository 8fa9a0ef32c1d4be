// What the benchmarks conclude from what they measured, and that every kernel in them can be run and held to the CPU.
#include "tests/helpers.h"
#include "train/bench_against.h"
#include "train/bench_training.h"
#include <doctest/doctest.h>
#include <random>

namespace triax {
namespace {

Description describe_nothing(const Target&, const Op&) { return {}; }
const OpKind kUnsteady{"test_unsteady", describe_nothing};

/// y = x + how often it ran before: as if two devices gave different results.
void launch_unsteady(const Op& op, const LaunchContext&) {
  static int calls = 0;
  for (int64_t i = 0; i < op[0].size(); ++i) op[0].data<float>()[i] = op[1].data<float>()[i] + float(calls);
  ++calls;
}
const LaunchRegistration kUnsteadyLaunch("host", "test_unsteady", launch_unsteady);

/// For a while the host is a GPU of 64 MiB: what it launches are the host's kernels.
class HostAsGpu {
public:
  HostAsGpu() {
    run_on_gpu(host_level());
    make_cuda_backend = [](const Target&) -> std::unique_ptr<Backend> { return std::make_unique<Small>(); };
  }
  ~HostAsGpu() {
    run_on_gpu("cuda");
    make_cuda_backend = before_;
  }

private:
  struct Small final : Backend {
    std::unique_ptr<Backend> host = make_host_backend(1);
    uint64_t allocate(Space s, int64_t bytes) override { return host->allocate(s, bytes); }
    void deallocate(Space s, uint64_t at, int64_t bytes) override { host->deallocate(s, at, bytes); }
    int64_t available(Space) const override { return int64_t(64) << 20; }
    void launch(StreamId s, LaunchFn f, const Op& op, const Tensor& scratch) override {
      host->launch(s, f, op, scratch);
    }
    void record(StreamId s, int32_t event) override { host->record(s, event); }
    void wait(StreamId s, int32_t event) override { host->wait(s, event); }
    void fence() override { host->fence(); }
    void synchronize() override { host->synchronize(); }
    void copy(uint64_t to, uint64_t from, int64_t bytes) override { host->copy(to, from, bytes); }
  };
  std::unique_ptr<Backend> (*before_)(const Target&) = make_cuda_backend;
};

TEST_SUITE_BEGIN("train_bench");

TEST_CASE("bench: names are found whatever their blanks and case") {
  CHECK(matches("rms_norm forward [16384, 1024]", "rmsnorm"));
  CHECK(matches("rms_norm forward", "RMS Norm f"));
  CHECK(matches("attention backward B 1 T 4096 H 8 D 64", "backward B1 T4096"));
  CHECK(matches("rope", ""));
  CHECK(!matches("rope", "roe"));
}

TEST_CASE("bench: the interval of a ratio is two order statistics") {
  std::vector<double> own, other;
  for (int i = 1; i <= 9; ++i) {
    own.push_back(double(i));
    other.push_back(1);
  }
  const Ratio ratio = ratio_of(own, other); // of nine: 1 - 2 (1 + 9) / 512
  CHECK(ratio.median == 5);
  CHECK(ratio.low == 2);
  CHECK(ratio.high == 8);
  CHECK(ratio.coverage == doctest::Approx(1 - 20.0 / 512));
  own.resize(6);
  other.resize(6);
  CHECK(ratio_of(own, other).median == 3.5);
  CHECK(ratio_of(own, other).low == 1);
  CHECK(ratio_of(own, other).coverage == doctest::Approx(1 - 2.0 / 64));
}

TEST_CASE("bench: a difference is seen, and one that is none seldom") {
  std::mt19937_64 random(7);
  std::lognormal_distribution<double> noise(0, 0.1);
  int seen = 0, false_alarms = 0, rounds = 400;
  for (int round = 0; round < rounds; ++round) {
    std::vector<double> a, b, slower;
    for (int i = 0; i < 12; ++i) {
      a.push_back(noise(random));
      b.push_back(noise(random));
      slower.push_back(1.3 * noise(random));
    }
    false_alarms += ratio_of(a, b).differs();
    seen += ratio_of(slower, b).differs();
  }
  CHECK(false_alarms < rounds * 0.07); // at most 5% are expected, 3.9% with twelve pairs
  CHECK(seen > rounds * 0.9);
}

TEST_CASE("bench: every kernel runs and agrees with the CPU") {
  KernelOptions options;
  options.size = BenchSize::tiny;
  options.check = true;
  options.kind = KernelKind::rows;
  size_t reported = 0;
  const auto rows = bench_kernels(options, [&](const std::vector<KernelRow>& so_far) { reported = so_far.size(); });
  CHECK(reported == rows.size());
  for (const KernelRow& row : rows) {
    CAPTURE(row.name);
    CAPTURE(row.error);
    CHECK(!row.failed());
    CHECK(row.difference == 0); // it is the CPU that was held to the CPU
    CHECK(row.percent > 0);
    CHECK(row.seconds > 0);
  }
}

TEST_CASE("bench: what only a GPU can run is listed as unchecked, once") {
  KernelOptions options;
  options.size = BenchSize::tiny;
  options.kind = KernelKind::attention;
  options.name = "forward";
  std::vector<std::string> unchecked;
  for (const KernelRow& row : bench_kernels(options, nullptr)) {
    CHECK(!row.failed());
    CHECK((row.implementation == kReference) != row.unchecked);
    if (row.unchecked) unchecked.push_back(concat(row.name, ' ', row.implementation, ' ', name_of(row.dtype)));
  }
  CHECK(unchecked == std::vector<std::string>{"attention forward cudnn bf16"}); // it does not take f32
}

TEST_CASE("bench: products stand beside the matrix rate") {
  KernelOptions options;
  options.size = BenchSize::tiny;
  options.dtype = Dtype::f32;
  options.name = "TN qkv";
  const auto rows = bench_kernels(options, nullptr);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].flops == 2.0 * 64 * 32 * 96);
  CHECK(rows[0].percent == doctest::Approx(100 * rows[0].flops / rows[0].seconds / rows[0].matrix_rate));
}

TEST_CASE("bench: on a GPU kernels are held to a copy alone, and products to the best product") {
  const HostAsGpu gpu;
  KernelOptions options;
  options.place.target = Target::parse("sm_90a");
  options.size = BenchSize::tiny;
  options.dtype = Dtype::f32;
  options.check = true;
  for (const char* name : {"rms_norm", "swiglu forward", "matmul NT down"}) {
    options.name = name;
    const auto rows = bench_kernels(options, nullptr);
    REQUIRE(!rows.empty());
    for (const KernelRow& row : rows) {
      CAPTURE(row.error);
      CHECK(!row.failed());
      CHECK(row.percent > 0);
      CHECK(row.exp_seconds == 0);
      CHECK(row.floor_seconds == row.copy_seconds);
      CHECK((row.matrix_rate > 0) == (row.kind == KernelKind::matmul));
    }
  }
}

TEST_CASE("bench: a model that fits by no plan is refused with what it needs") {
  const HostAsGpu gpu;
  const auto transport = Transport::ghost(0, 1);
  TrainingOptions options;
  CHECK(usual_models({Target::parse("sm_90a"), 1}).back() == "llama2-7b");
  options.model = "qwen2.5-0.5b";
  options.dtype = Dtype::bf16;
  options.place.target = Target::parse("sm_90a");
  options.size = BenchSize::tiny;
  const std::string error = test::error_of([&] { bench_training(*transport, options); });
  CHECK(test::has(error, "qwen2.5-0.5b does not fit: 512 tokens at a time need "));
  CHECK(test::has(error, "64.0 MiB are available"));
}

TEST_CASE("bench: a name that no kernel has is refused with the names that are there") {
  KernelOptions options;
  options.name = "atention";
  const std::string error = test::error_of([&] { bench_kernels(options, nullptr); });
  CHECK(test::has(error, "'atention'"));
  CHECK(test::has(error, "attention forward"));
}

TEST_CASE("bench: a difference from the CPU is found, and is relative") {
  BenchCase c({}, Dtype::f32);
  const Tensor x = c.constant({8}, 2), y = c.constant({8}, 0);
  CHECK(difference_from_cpu(c, Op(kUnsteady).write(y).read(x), 1) == doctest::Approx(1.0 / 3)); // 2, and then 3
}

TEST_SUITE_END();

} // namespace
} // namespace triax
