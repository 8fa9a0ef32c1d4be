// The GPU as a device: what is said without one, and the order between streams, the host's collectives among them.
#include "kernels/elementwise.h"
#include "tests/cuda.h"
#include "tests/helpers.h"
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace triax {
namespace {

using test::error_of;
using test::has;
using test::open_gpu;

Description describe_nothing(const Target&, const Op&) { return {}; }
const OpKind kIncrement{"test_increment", describe_nothing};
const OpKind kFailure{"test_failure", describe_nothing};

/// As a collective over the host does it: x + 1, through the host's memory, by the stream's thread.
void launch_increment(const Op& op, const LaunchContext&) {
  auto& device = *static_cast<Device*>(op.handle);
  std::vector<float> stage(size_t(op[0].size()));
  const auto at = reinterpret_cast<uint64_t>(stage.data());
  device.transfer(at, op[0].address, op[0].bytes());
  std::this_thread::sleep_for(std::chrono::milliseconds(1)); // long enough for who does not wait to be early
  for (float& v : stage) v += 1;
  device.transfer(op[0].address, at, op[0].bytes());
}
void launch_failure(const Op&, const LaunchContext&) { throw Error("a peer is gone"); }
const LaunchRegistration kIncrementLaunch("cuda", "test_increment", launch_increment);
const LaunchRegistration kFailureLaunch("cuda", "test_failure", launch_failure);

Op collective(Device& device, const OpKind& kind, const Tensor& x) {
  Op op = Op(kind).update(x);
  op.handle = &device;
  return op;
}

constexpr int64_t kSize = int64_t(1) << 20;

constexpr int kRounds = 5;
struct Buffers {
  Tensor x, y, z, pinned;
};
Buffers buffers(Device& device) {
  return {device.persistent("x", Purpose::inputs, Dtype::f32, {kSize}),
          device.persistent("y", Purpose::inputs, Dtype::f32, {kSize}),
          device.persistent("z", Purpose::inputs, Dtype::f32, {kSize}),
          device.persistent("pinned", Purpose::inputs, Dtype::f32, {kRounds, kSize}, Space::pinned)};
}

/// For each round r: y = 2 r + 1 through a kernel and a collective of the communication stream, brought to the host by
/// the copy stream, and z += y. The buffers are used again in every round, so every order is needed.
void train(Device& device, const Buffers& b) {
  Stream compute = device.compute(), communication = device.communication(), copies = device.copy();
  device.begin("train");
  for (int r = 0; r < kRounds; ++r) {
    compute.run(fill(b.x, float(r)));
    const Event filled = compute.record();
    communication.wait(filled);
    communication.run(add(b.y, b.x, b.x));
    communication.run(collective(device, kIncrement, b.y));
    const Event summed = communication.record();
    compute.wait(summed);
    compute.run(add(b.z, b.z, b.y));
    copies.wait(summed);
    copies.run(copy(b.pinned.slice(0, r, 1).view({kSize}), b.y));
    const Event copied = copies.record(), added = compute.record();
    communication.wait(copied);
    communication.wait(added);
  }
  communication.run(collective(device, kIncrement, b.y)); // nobody in this step waits for these
  for (int r = 0; r < kRounds; ++r) communication.run(add(b.y, b.y, b.x));
  device.end();
}

/// Follows all of the step before by the order of steps alone.
void clear(Device& device, const Buffers& b) {
  device.begin("clear");
  device.compute().run(fill(b.y, -1));
  device.end();
}

bool all_are(const std::vector<float>& x, float value) {
  return std::all_of(x.begin(), x.end(), [&](float v) { return v == value; });
}

void check_steps(Device& device, const Buffers& b, int steps) {
  for (int s = 0; s < steps; ++s) train(device, b);
  clear(device, b);
  std::vector<float> y(kSize), z(kSize), row(kSize);
  device.read(b.y, y.data());
  CHECK(all_are(y, -1));
  device.read(b.z, z.data());
  CHECK(all_are(z, float(steps * kRounds * kRounds))); // 1 + 3 + ... + (2 kRounds - 1) a step
  for (int r = 0; r < kRounds; ++r) {
    std::memcpy(row.data(), b.pinned.data<float>() + r * kSize, size_t(kSize) * sizeof(float));
    CHECK(all_are(row, float(2 * r + 1)));
  }
}

TEST_SUITE_BEGIN("cuda_device");

TEST_CASE("cuda: a target that is not here is refused in a sentence") {
  const bool gpu = best_target().kind == Target::Kind::cuda;
  const std::string error = error_of([&] { Device::open(Target::parse("sm_10"), 1); }); // no GPU is this old
  CHECK(has(error, "target sm_10 cannot be used here"));
  CHECK((gpu ? has(error, "use that target") : has(error, "use --target cpu") || has(error, "CUDA_ARCHS=")));
}

TEST_CASE("cuda: what has an implementation of its own for GPUs has one") {
  for (const char* name : {"copy", "matmul", "attention_forward", "attention_backward"}) {
    CAPTURE(name);
    const bool there = find_launch(OpKind{name, describe_nothing}, Target::Kind::cuda) != nullptr;
    CHECK(there);
  }
}

TEST_CASE("cuda: streams and collectives of the host keep their order") {
  const auto device = open_gpu();
  if (!device) return;
  check_steps(*device, buffers(*device), 10);
}

TEST_CASE("cuda: a planned step in the plan's arena") {
  const auto device = open_gpu();
  if (!device) return;
  const auto ghost = Device::ghost(device->target());
  const Buffers planned = buffers(*ghost);
  train(*ghost, planned);
  clear(*ghost, planned);
  const Plan plan = ghost->plan();
  device->follow(plan);
  check_steps(*device, buffers(*device), 3);
}

TEST_CASE("cuda: what a collective throws reaches who waits for it") {
  for (const bool by_event : {true, false}) {
    const auto device = open_gpu();
    if (!device) return;
    const Tensor x = device->persistent("x", Purpose::inputs, Dtype::f32, {4});
    Stream communication = device->communication();
    communication.run(collective(*device, kFailure, x));
    const Event done = communication.record();
    const std::string error = error_of([&] { by_event ? device->compute().wait(done) : device->synchronize(); });
    CHECK(error == "a peer is gone");
  }
}

TEST_CASE("cuda: too much is refused in a sentence") {
  const auto device = open_gpu();
  if (!device) return;
  const std::string error =
      error_of([&] { device->persistent("huge", Purpose::weights, Dtype::u8, {int64_t(1) << 50}); });
  CHECK(has(error, "not enough device memory"));
}

TEST_SUITE_END();

} // namespace
} // namespace triax
