#include "train/bench_case.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/step_state.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <span>

namespace triax {
namespace {

/// A sample is repeated until it is longer, in seconds: on a GPU what a launch and the waiting take must be little.
constexpr double kShortestCpu = 2e-4, kShortestGpu = 4e-3;

struct Extent {
  int64_t m, n, k;
};

/// Each of these keeps every GPU busy for a millisecond; which is the fastest is not known before.
constexpr Extent kLarge[] = {{8192, 8192, 8192}, {16384, 8192, 4096}, {4096, 16384, 8192}};

constexpr Extent kSmall[] = {{256, 256, 256}};

double gpu_matrix_rate(const BenchPlace& place, Dtype dtype, std::span<const Extent> extents) {
  double best = 0;
  for (const Extent& e : extents) {
    BenchCase c(place, dtype);
    const auto call = c.call(matmul(
        {.c = c.numbers({e.m, e.n}), .a = c.numbers({e.m, e.k}), .b = c.numbers({e.n, e.k}), .transpose_b = true}));
    const int repeat = 2 * c.repeats_of(call);
    for (int round = 0; round < 5; ++round)
      best = std::max(best, 2.0 * double(e.m) * double(e.n) * double(e.k) / c.seconds_of(call, repeat));
  }
  return best;
}

double relative_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b, const Tensor& like) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < size_t(like.size()); ++i) {
    const size_t at = size_t(like.offset(int64_t(i)) * bytes_of(like.dtype));
    const double x = number_at(like.dtype, a.data() + at), y = number_at(like.dtype, b.data() + at);
    if (std::isfinite(x) != std::isfinite(y)) return INFINITY;
    if (!std::isfinite(x)) continue;
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

using Bytes = std::vector<std::byte>;

/// All from the first element to the last, gaps included.
Tensor extent_of(const Tensor& t) { return Tensor::dense(t.address, t.space, Dtype::u8, {t.extent()}); }
Bytes bytes_at(Device& device, const Tensor& t) {
  Bytes bytes(size_t(t.extent()));
  device.read(extent_of(t), bytes.data());
  return bytes;
}

} // namespace

Tensor BenchCase::numbers(Dtype dtype, std::initializer_list<int64_t> shape) {
  const Tensor t = device_->persistent("bench", Purpose::activations, dtype, shape);
  device_->compute().run(normal_fill(t, 1.0f, ++seed_, 0, 0));
  return t;
}

Tensor BenchCase::ints(int64_t n, const std::function<int64_t(int64_t)>& value) {
  const Tensor t = device_->persistent("bench", Purpose::inputs, Dtype::i32, {n});
  std::vector<int32_t> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[size_t(i)] = int32_t(value(i));
  device_->write(t, values.data());
  return t;
}

Tensor BenchCase::constant(std::initializer_list<int64_t> shape, float value) {
  const Tensor t = device_->persistent("bench", Purpose::activations, Dtype::f32, shape);
  device_->compute().run(fill(t, value));
  return t;
}

Tensor BenchCase::step_state() {
  const StepState s{.seed = 1, .step = 1, .learning_rate = 1e-6f};
  const Tensor t = device_->persistent("state", Purpose::inputs, Dtype::u8, {int64_t(sizeof(s))});
  device_->write(t, &s);
  return t;
}

double BenchCase::seconds_of(const Call& call, int repeat) {
  using Clock = std::chrono::steady_clock;
  device_->synchronize();
  const auto begin = Clock::now();
  for (int r = 0; r < repeat; ++r) call();
  device_->synchronize();
  return std::chrono::duration<double>(Clock::now() - begin).count() / repeat;
}

int BenchCase::repeats_of(const Call& call) {
  const double shortest = device_->target().kind == Target::Kind::cuda ? kShortestGpu : kShortestCpu;
  double seconds = seconds_of(call, 1);
  if (seconds < 0.05) seconds = seconds_of(call, 1); // the first one prepared what every later one finds
  return 1 + int(shortest / seconds);
}

double median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + long(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

double matrix_rate_of(const BenchPlace& place, Dtype dtype, BenchSize size) {
  const std::span<const Extent> extents = size == BenchSize::tiny ? std::span<const Extent>(kSmall) : kLarge;
  if (place.gpu()) return gpu_matrix_rate(place, dtype, extents);
  return measure_matrix_rate(dtype == Dtype::bf16 && !cpu_has_bf16() ? Dtype::f32 : dtype, place.threads);
}

double difference_from_cpu(BenchCase& c, const Op& op, int threads) {
  Device& device = c.device();
  const auto cpu = Device::open({}, threads);
  Op twin = op;
  for (int i = 0; i < op.operand_count; ++i) {
    if (!op.has(i)) continue;
    twin.operands[size_t(i)].tensor.address =
        cpu->persistent("twin", Purpose::activations, Dtype::u8, {op[i].extent()}).address;
    cpu->write(extent_of(twin[i]), bytes_at(device, op[i]).data());
  }
  device.compute().run(op);
  {
    const ImplementationScope reference(*op.kind, kReference);
    cpu->compute().run(twin);
  }
  double most = 0;
  for (int i = 0; i < op.operand_count; ++i) {
    const bool floats = op[i].dtype == Dtype::f32 || op[i].dtype == Dtype::bf16;
    if (op.has(i) && floats && op.operands[size_t(i)].access != Access::read)
      most = std::max(most, relative_difference(bytes_at(device, op[i]), bytes_at(*cpu, twin[i]), op[i]));
  }
  return most;
}

} // namespace triax
