// Several implementations of one operation: choosing one, and its comparison with the reference on a run's tensors.
#include "kernels/device.h"
#include "tests/helpers.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>

using namespace triax;
using test::error_of;
using test::has;

namespace {

template <int Wrong> void launch_add(const Op& op, const LaunchContext&) {
  float* y = op[0].data<float>();
  for (int64_t i = 0; i < op[0].size(); ++i) y[i] = op[1].data<float>()[i] + op[2].data<float>()[i];
  if (Wrong) y[op[0].size() - 1] *= 1.5f;
}
Description describe_add(const Target&, const Op&) { return {.scratch = 512, .kernels = {"add, another"}}; }

const LaunchRegistration registered[] = {{"host", "test_add", launch_add<0>},
                                         {"host", "test_add", launch_add<0>, "another", describe_add},
                                         {"host", "test_add", launch_add<1>, "wrong"}};
const NameRegistration elsewhere{"test_add", "elsewhere", nullptr};

const OpKind kAdd{"test_add", [](const Target&, const Op&) { return Description{}; }};
Op add(const Tensor& y, const Tensor& a, const Tensor& b) { return Op(kAdd).write(y).read(a).read(b); }

/// Until the end of the scope.
struct Chosen {
  explicit Chosen(const char* name) { choose_implementation("test_add", name); }
  ~Chosen() { choose_implementation("test_add", kReference); }
};

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
          std::vector<std::string>{"test_add: 'another' agrees with 'triax' on 2 launches, to 0 of the norm"});
    CHECK(has(run_steps(4).at(0), "on 3 launches"));
  }

  TEST_CASE("one that differs ends the run, with operand, place and values") {
    const Chosen chosen("wrong");
    const std::string said = error_of([] { run_steps(1); });
    for (const char* part :
         {"'wrong' of test_add differs from 'triax'", "operand 0, f32[1000]", "at [999]", "instead of 1998"})
      CHECK_MESSAGE(has(said, part), part << " in: " << said);
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
