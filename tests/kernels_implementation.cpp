// Several implementations of one operation: choosing one, and its comparison with the reference on a run's tensors.
#include "kernels/attention.h"
#include "kernels/choice.h"
#include "kernels/compare.h"
#include "tests/helpers.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <numeric>

using namespace triax;
using test::error_of;
using test::has;

namespace {

enum class Wrong { never, always, of_999 };
template <Wrong W> void launch_add(const Op& op, const LaunchContext&) {
  float* y = op[0].data<float>();
  const bool last_999 = op[1].data<float>()[op[0].size() - 1] == 999;
  for (int64_t i = 0; i < op[0].size(); ++i) y[i] = op[1].data<float>()[i] + op[2].data<float>()[i];
  if (W == Wrong::always || (W == Wrong::of_999 && last_999)) y[op[0].size() - 1] *= 1.5f;
}
Description describe_add(const Target&, const Op&) { return {.scratch = 512, .kernels = {"add, another"}}; }

const LaunchRegistration registered[] = {{"host", "test_add", launch_add<Wrong::never>},
                                         {"host", "test_add", launch_add<Wrong::never>, "another", describe_add},
                                         {"host", "test_add", launch_add<Wrong::always>, "wrong"},
                                         {"host", "test_add", launch_add<Wrong::of_999>, "wrong_of_999"}};
const NameRegistration elsewhere{"test_add", "elsewhere", nullptr};

const OpKind kAdd{"test_add", [](const Target&, const Op&) { return Description{}; }};
Op add(const Tensor& y, const Tensor& a, const Tensor& b) { return Op(kAdd).write(y).read(a).read(b); }

/// Until the end of the scope.
struct Chosen {
  explicit Chosen(const char* name) { choose_implementation("test_add", name); }
  ~Chosen() { choose_implementation("test_add", kReference); }
};

// Attention as it is, noting what it is given, and as if there were no documents.
struct Seen {
  int64_t forward_documents = 0;
  bool backward_rows_are_probabilities = false;
} seen;
void launch_same_forward(const Op& op, const LaunchContext& context) {
  const int32_t* start = op[4].data<int32_t>();
  seen.forward_documents =
      std::count_if(start + 1, start + op[4].size(), [&](const int32_t& s) { return s != (&s)[-1]; }) + 1;
  find_launch(*op.kind, Target::Kind::cpu, kReference)(op, context);
}
void launch_same_backward(const Op& op, const LaunchContext& context) {
  // The sum of exponentials of the first position, which sees itself alone, is that of its own score.
  const float *q = op[5].data<float>(), *k = op[6].data<float>();
  const double score = std::inner_product(q, q + 16, k, 0.0) * 0.25;
  seen.backward_rows_are_probabilities = std::abs(op[4].data<float>()[0] - score) < 1e-5;
  find_launch(*op.kind, Target::Kind::cpu, kReference)(op, context);
}
void launch_no_documents(const Op& op, const LaunchContext& context) {
  const size_t starts = size_t(op.operand_count - 2); // the state is last
  const std::vector<int32_t> zeros(size_t(op[int(starts)].size()), 0);
  Op whole = op;
  whole.operands[starts].tensor.address = uint64_t(zeros.data());
  find_launch(*op.kind, Target::Kind::cpu, kReference)(whole, context);
}
const LaunchRegistration attentions[] = {{"host", "attention_forward", launch_same_forward, "test_same"},
                                         {"host", "attention_backward", launch_same_backward, "test_same"},
                                         {"host", "attention_forward", launch_no_documents, "test_no_documents"},
                                         {"host", "attention_backward", launch_no_documents, "test_no_documents"}};

Description describe_nothing(const Target&, const Op&) { return {}; }

void follow_attention(const char* forward, const char* backward, bool documents) {
  choose_implementation("attention_forward", forward);
  choose_implementation("attention_backward", backward);
  const auto ghost = Device::ghost({});
  const auto numbers = [&](std::initializer_list<int64_t> shape) {
    return ghost->persistent("x", Purpose::activations, Dtype::f32, shape);
  };
  const int64_t B = 2, T = 400, H = 2, G = 1, D = 16, N = B * T;
  const AttentionShape shape{B, T, H, G, D, 0.25f, 0, documents};
  const Tensor out = numbers({N, H * D}), lse = numbers({B, H, T}), qkv = numbers({N, (H + 2 * G) * D}),
               dqkv = numbers({N, (H + 2 * G) * D}), dout = numbers({N, H * D}),
               start = ghost->persistent("start", Purpose::inputs, Dtype::i32, {N});
  ghost->begin("step");
  ghost->compute().run(attention_forward({shape, out, lse, qkv, start}));
  ghost->compute().run(attention_backward({shape, dqkv, dout, out, lse, qkv, start}));
  ghost->end();
  const Plan plan = ghost->plan();
  std::string error = error_of([&] { Device::open({}, 1)->follow(plan); });
  choose_implementation("attention", kReference);
  if (!error.empty()) fail(error);
}

// y = a sum of i32, off by one of them in the other implementation.
const OpKind kCountKind{"test_count", describe_nothing};
template <int Extra> void launch_count(const Op& op, const LaunchContext&) {
  const int32_t* x = op[1].data<int32_t>();
  *op[0].data<float>() = float(std::accumulate(x, x + op[1].size(), 0) + Extra * x[0]);
}
// Halves of even counts of numbers have a quick implementation.
int halved_quickly = 0;
template <bool Quick> void launch_halve(const Op& op, const LaunchContext&) {
  halved_quickly += Quick;
  for (int64_t i = 0; i < op[0].size(); ++i) op[0].data<float>()[i] *= 0.5f;
}
const OpKind kHalve{"test_halve", describe_nothing};
Description describe_quick(const Target&, const Op&) { return {.kernels = {"halve, quick"}}; }
const LaunchRegistration more[] = {{"host", "test_count", launch_count<0>},
                                   {"host", "test_count", launch_count<1>, "another"},
                                   {"host", "test_halve", launch_halve<false>},
                                   {"host", "test_halve", launch_halve<true>, "quick", describe_quick}};
const FavouriteRegistration favourite{"test_halve", "quick",
                                      [](const Target&, const Op& op) { return op[0].size() % 2 == 0; }};

std::string follow_count() {
  const auto ghost = Device::ghost({});
  const Tensor y = ghost->persistent("y", Purpose::activations, Dtype::f32, {1}),
               x = ghost->persistent("x", Purpose::inputs, Dtype::i32, {5});
  ghost->begin("step");
  ghost->compute().run(Op(kCountKind).write(y).read(x));
  ghost->end();
  return error_of([&] { Device::open({}, 1)->follow(ghost->plan()); });
}

constexpr int64_t kCount = 1000;

/// Runs a planned step that adds twice, `steps` times; returns the device's sentences.
std::vector<std::string> run_steps(int steps) {
  const auto body = [](Device& d, const Tensor& x) {
    d.begin("step");
    const Allocation y = d.allocate("y", Purpose::activations, Dtype::f32, {kCount});
    d.compute().run(add(y, x, x));
    d.compute().run(add(x, x, y)); // in place
    d.end();
  };
  const auto inputs = [](Device& d) { return d.persistent("x", Purpose::weights, Dtype::f32, {kCount}); };
  const auto ghost = Device::ghost({});
  body(*ghost, inputs(*ghost));
  const auto device = Device::open({}, 1);
  device->follow(ghost->plan());
  const Tensor x = inputs(*device);
  std::vector<float> values(kCount);
  for (int64_t i = 0; i < kCount; ++i) values[size_t(i)] = float(i);
  device->write(x, values.data());
  for (int s = 0; s < steps; ++s) body(*device, x);
  device->read(x, values.data());
  for (int64_t i = 0; i < kCount; ++i) CHECK(values[size_t(i)] == float(i) * float(std::pow(3.0, steps)));
  return device->comparisons();
}

} // namespace

TEST_SUITE("kernels_implementation") {

  TEST_CASE("the chosen implementation is compared on the first launches of a run, and what it wrote stays") {
    CHECK(run_steps(1).empty());
    const Chosen chosen("another");
    CHECK(run_steps(1) ==
          std::vector<std::string>{
              "test_add: 'another' agrees with 'triax' on random data and on 2 launches, to 0 of the norm"});
    CHECK(has(run_steps(4).at(0), "on 3 launches"));
    CHECK(has(run_steps(0).at(0), "agrees with 'triax' on random data, to 0 of the norm"));
  }

  TEST_CASE("one that differs ends the run before its first step, with operand, place and values") {
    const Chosen chosen("wrong");
    const std::string said = error_of([] { run_steps(0); });
    for (const char* part : {"'wrong' of test_add differs from 'triax' on random data of this run's shapes",
                             "operand 0, f32[1000]", "at [999]", "set kernels.test_add=triax"})
      CHECK_MESSAGE(has(said, part), part << " in: " << said);
  }

  TEST_CASE("one that differs on the tensors of the run alone ends it there") {
    const Chosen chosen("wrong_of_999");
    CHECK(error_of([] { run_steps(0); }).empty());
    const std::string said = error_of([] { run_steps(1); });
    for (const char* part : {"'wrong_of_999' of test_add differs from 'triax' on this run's tensors", "at [999]",
                             "gives 2997 instead of 1998"})
      CHECK_MESSAGE(has(said, part), part << " in: " << said);
  }

  TEST_CASE("attention is compared on random data of the run's shapes, documents among them, forward and backward") {
    CHECK(error_of([] { follow_attention("test_same", "test_same", true); }).empty());
    CHECK(seen.forward_documents > 1);
    CHECK(seen.backward_rows_are_probabilities);
    for (const bool backward : {false, true}) {
      const auto go = [&](bool documents) {
        return error_of([&] {
          follow_attention(backward ? "test_same" : "test_no_documents", backward ? "test_no_documents" : "test_same",
                           documents);
        });
      };
      CHECK(has(go(true), backward ? "'test_no_documents' of attention_backward differs"
                                   : "'test_no_documents' of attention_forward differs"));
      CHECK(has(go(true), "on random data of this run's shapes"));
      CHECK(go(false).empty());
    }
  }

  TEST_CASE("what reads other than floats is compared where it registers random data") {
    choose_implementation("test_count", "another");
    CHECK(follow_count().empty()); // by nothing that could differ: it was not compared
    const RandomRegistration random("test_count", [](Device& device, const Op& op) {
      const std::vector<int32_t> ones(size_t(op[1].size()), 1);
      device.write(op[1], ones.data());
    });
    CHECK(has(follow_count(), "'another' of test_count differs from 'triax' on random data"));
    choose_implementation("test_count", kReference);
  }

  TEST_CASE("auto runs the favourite where it takes the operation, and elsewhere the reference") {
    CHECK(has_favourite("test_halve"));
    CHECK(!has_favourite("test_add"));
    CHECK(has(error_of([] { choose_implementation("test_add", kAutomatic); }),
              "kernels.test_add is 'auto', which this binary does not have; it has"));
    choose_implementation("test_halve", kAutomatic);
    const auto device = Device::open({}, 1);
    const Tensor even = device->persistent("x", Purpose::inputs, Dtype::f32, {8}),
                 odd = device->persistent("x", Purpose::inputs, Dtype::f32, {7});
    halved_quickly = 0;
    for (const Tensor& x : {even, odd, even}) device->compute().run(Op(kHalve).update(x));
    CHECK(halved_quickly == 2);
    CHECK(implementation_of({}, Op(kHalve).update(even)) == "quick");
    CHECK(implementation_of({}, Op(kHalve).update(odd)) == kReference);
    CHECK(describe({}, Op(kHalve).update(even)).kernels == std::vector<std::string>{"halve, quick"});
    CHECK(describe({}, Op(kHalve).update(odd)).kernels.empty());
    const Target gpu = Target::parse("sm_90a");
    const std::string said = error_of([&] { demand_launch(nullptr, gpu, Op(kHalve).update(even)); });
    CHECK(has(said, "kernels.test_halve is auto, which on sm_90a is 'quick' for such a run, and this binary was built "
                    "without it: set kernels.test_halve=triax"));

    CHECK(obstacle_of_favourite("test_halve", {}).empty());
    CHECK(obstacle_of_favourite("test_add", {}).empty()); // it has no favourite
    CHECK(obstacle_of_favourite("test_halve", gpu) == "this binary was built without 'quick' for sm_90a");
    const ObstacleRegistration missing("test_halve", [] { return std::string("no library"); });
    CHECK(obstacle_of_favourite("test_halve", {}) == "no library");
    leave_out_favourite("test_halve", "no library");
    CHECK(why_left_out("test_halve") == "no library");
    CHECK(implementation_of({}, Op(kHalve).update(even)) == kReference);
    CHECK(describe({}, Op(kHalve).update(even)).kernels.empty());
    leave_out_favourite("test_halve", "");
    CHECK(implementation_of({}, Op(kHalve).update(even)) == "quick");
    choose_implementation("test_halve", kReference);
  }

  TEST_CASE("auto for attention is cuDNN's on a GPU, where its masks and widths suffice") {
    const auto name = [](const char* target, Dtype dtype, int64_t D, int64_t window, bool documents) {
      choose_implementation("attention", kAutomatic);
      const AttentionShape shape{1, 8, 2, 1, D, 0.1f, window, documents};
      const auto rows = [&](int64_t heads) { return Tensor::dense(4096, Space::device, dtype, {8, heads * D}); };
      const Tensor lse = Tensor::dense(4096, Space::device, Dtype::f32, {1, 2, 8}),
                   start = Tensor::dense(4096, Space::device, Dtype::i32, {8});
      const std::string forward = implementation_of(Target::parse(target),
                                                    attention_forward({shape, rows(2), lse, rows(4), start})),
                        backward = implementation_of(
                            Target::parse(target),
                            attention_backward({shape, rows(4), rows(2), rows(2), lse, rows(4), start}));
      choose_implementation("attention", kReference);
      CHECK(forward == backward);
      return forward;
    };
    CHECK(name("sm_90a", Dtype::bf16, 64, 0, false) == "cudnn");
    CHECK(name("sm_80", Dtype::bf16, 128, 0, false) == "cudnn");
    CHECK(name("cpu", Dtype::bf16, 64, 0, false) == kReference);
    CHECK(name("sm_90a", Dtype::f32, 64, 0, false) == kReference);
    CHECK(name("sm_90a", Dtype::bf16, 100, 0, false) == kReference);
    CHECK(name("sm_90a", Dtype::bf16, 136, 0, false) == kReference);
    CHECK(name("sm_90a", Dtype::bf16, 64, 4, false) == kReference);
    CHECK(name("sm_90a", Dtype::bf16, 64, 0, true) == kReference);
  }

  TEST_CASE("its workspace is planned") {
    const auto ghost = Device::ghost({});
    const Tensor x = ghost->persistent("x", Purpose::weights, Dtype::f32, {kCount});
    CHECK(describe({}, add(x, x, x)).scratch == 0);
    const Chosen chosen("another");
    CHECK(describe({}, add(x, x, x)).scratch == 512);
    CHECK(describe({}, add(x, x, x)).kernels == std::vector<std::string>{"add, another"});
  }

  TEST_CASE("what is not there is refused with what is") {
    CHECK(has(error_of([] { choose_implementation("nonsense", "another"); }), "kernels.nonsense: no operation"));
    const std::string said = error_of([] { choose_implementation("test_add", "nonsense"); });
    CHECK(has(said, "kernels.test_add is 'nonsense', which this binary does not have; it has"));
    CHECK(has(said, "another"));
    const Chosen chosen("elsewhere");
    CHECK(has(error_of([] { run_steps(1); }),
              "kernels.test_add is 'elsewhere', which this binary does not have for cpu"));
  }

  TEST_CASE("one name chooses a forward and a backward pass") {
    const auto families = operation_families();
    CHECK(std::count(families.begin(), families.end(), "norm") == 1);
    CHECK(std::count(families.begin(), families.end(), "norm_backward") == 0);
    CHECK(std::count(families.begin(), families.end(), "adamw") == 1);
    choose_implementation("norm", kReference);
  }

} // TEST_SUITE
