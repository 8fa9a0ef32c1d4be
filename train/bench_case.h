// Operands of one measurement on a device, and how long a call takes there.
#pragma once
#include "kernels/device.h"
#include <functional>
#include <string>
#include <vector>

namespace triax {

/// Where it is measured; `threads` is the compute team of a CPU.
struct BenchPlace {
  Target target;
  int threads = 1;
  bool gpu() const { return target.kind == Target::Kind::cuda; }
};

/// Shapes: as large as the place needs to show its speed, or so small that all are through in seconds.
enum class BenchSize { usual, tiny };

/// A device and operands that live as long as it.
class BenchCase {
public:
  BenchCase(const BenchPlace& place, Dtype dtype) : device_(Device::open(place.target, place.threads)), dtype_(dtype) {}

  Dtype dtype() const { return dtype_; }
  Device& device() const { return *device_; }
  /// Normal numbers, others at each call.
  Tensor numbers(std::initializer_list<int64_t> shape) { return numbers(dtype_, shape); }
  Tensor numbers(Dtype dtype, std::initializer_list<int64_t> shape);
  Tensor ints(int64_t n, const std::function<int64_t(int64_t)>& value); ///< i32[n]
  Tensor constant(std::initializer_list<int64_t> shape, float value);   ///< f32
  Tensor step_state();                                                  ///< of a step with a small learning rate

  /// Seconds of one of `repeat` calls after each other, until all are done. On the first use of `op` its workspace is
  /// allocated, outside of what is timed.
  using Call = std::function<void()>;
  Call call(const Op& op) { return device_->prepare(op); }
  double seconds_of(const Call& call, int repeat);
  /// Calls that last long enough to be timed, from a call or two.
  int repeats_of(const Call& call);

private:
  std::unique_ptr<Device> device_;
  Dtype dtype_;
  uint64_t seed_ = 0;
};

double median(std::vector<double> samples);

/// FLOP/s of a CPU by `measure_matrix_rate` (of f32 where it multiplies no bf16), of a GPU by the best of several large
/// products (`tiny`: of a small one) of random numbers through the operation `matmul`.
double matrix_rate_of(const BenchPlace& place, Dtype dtype, BenchSize size = BenchSize::usual);

/// Runs `op` where its operands are and, from the same operands, on the CPU. The largest relative difference (norm of
/// the difference over the norm) of any float operand that it writes; infinite where one side alone is no number. An
/// implementation that was chosen over the reference is compared with that on the device as well.
double difference_from_cpu(BenchCase& c, const Op& op, int threads);

} // namespace triax
