#include "train/bench_kernels.h"
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/cross_entropy.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/floor.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/step_state.h"
#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>

namespace triax {
namespace {

constexpr int kRounds = 9;
constexpr double kShortest = 2e-4; // seconds: a sample is repeated until it is longer

/// One kernel's operands on a device of their own.
class Case {
public:
  Case(int threads, Dtype dtype) : device_(Device::open(Target{}, threads)), dtype_(dtype), threads_(threads) {}

  /// Normal numbers.
  Tensor numbers(std::initializer_list<int64_t> shape) { return numbers(dtype_, shape); }
  Tensor numbers(Dtype dtype, std::initializer_list<int64_t> shape) {
    const Tensor t = device_->persistent("bench", Purpose::activations, dtype, shape);
    device_->compute().run(normal_fill(t, 1.0f, ++seed_, 0, 0));
    return t;
  }
  Tensor ints(int64_t n, int32_t (*value)(int64_t, int64_t), int64_t limit) {
    const Tensor t = device_->persistent("bench", Purpose::inputs, Dtype::i32, {n});
    std::vector<int32_t> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = value(i, limit);
    device_->write(t, values.data());
    return t;
  }
  Tensor constant(int64_t n, float value) {
    const Tensor t = device_->persistent("bench", Purpose::activations, Dtype::f32, {n});
    device_->compute().run(fill(t, value));
    return t;
  }
  Tensor state() {
    const StepState s{.seed = 1, .step = 1, .learning_rate = 1e-6f};
    const Tensor t = device_->persistent("state", Purpose::inputs, Dtype::u8, {int64_t(sizeof(s))});
    device_->write(t, &s);
    return t;
  }
  /// A call that runs `op`, without the workspace being allocated each time.
  std::function<void()> call(const Op& op) {
    LaunchContext context{nullptr, threads_, {}};
    if (const int64_t scratch = op.kind->describe(Target{}, op).scratch)
      context.scratch = device_->persistent("workspace", Purpose::workspace, Dtype::u8, {scratch});
    const LaunchFn launch = find_launch(*op.kind, Target::Kind::cpu);
    return [=] { launch(op, context); };
  }
  Dtype dtype() const { return dtype_; }

private:
  std::unique_ptr<Device> device_;
  Dtype dtype_;
  int threads_;
  uint64_t seed_ = 0;
};

double seconds_of(const std::function<void()>& call, int repeat) {
  const auto begin = std::chrono::steady_clock::now();
  for (int r = 0; r < repeat; ++r) call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / repeat;
}

double median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + long(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

KernelRow measure(Case& c, const std::string& name, const std::string& shape, const Op& op, double exponentials,
                  int threads) {
  const double bytes = op.kind->describe(Target{}, op).bytes;
  const int64_t copied = std::max<int64_t>(1, int64_t(bytes) / 8), exp_count = 2048 * threads, exp_repeat = 200;
  const auto kernel = c.call(op),
             copy = c.call(floor_copy(c.numbers(Dtype::f32, {copied}), c.numbers(Dtype::f32, {copied}))),
             exp =
                 c.call(floor_exp(c.numbers(Dtype::f32, {exp_count}), c.numbers(Dtype::f32, {exp_count}), exp_repeat));
  const int kernel_repeat = 1 + int(kShortest / seconds_of(kernel, 1)),
            copy_repeat = 1 + int(kShortest / seconds_of(copy, 1));
  std::vector<double> kernel_s, copy_s, exp_s;
  for (int round = 0; round < kRounds; ++round) {
    kernel_s.push_back(seconds_of(kernel, kernel_repeat));
    copy_s.push_back(seconds_of(copy, copy_repeat));
    exp_s.push_back(seconds_of(exp, 1) / double(exp_count * exp_repeat));
  }
  // Floors are the best that was seen: a disturbed one would flatter the kernel. That of exp is a rate of the machine,
  // so it is the best of the whole run, see `finish`; until then it is what this row saw, by exponential.
  const auto best = [](const std::vector<double>& samples) {
    return *std::min_element(samples.begin(), samples.end());
  };
  return {name, shape, c.dtype(), bytes, exponentials, median(kernel_s), best(copy_s), best(exp_s), 0, 0};
}

void finish(std::vector<KernelRow>& rows) {
  double rate = rows.front().exp_seconds;
  for (const KernelRow& row : rows) rate = std::min(rate, row.exp_seconds);
  for (KernelRow& row : rows) {
    row.exp_seconds = rate * row.exponentials;
    row.floor_seconds = std::max(row.copy_seconds, row.exp_seconds);
    row.percent = 100 * row.floor_seconds / row.seconds;
  }
}

/// All kernels of a dtype for rows [rows, columns], and a loss over [loss_rows, classes].
class Bench {
public:
  Bench(int threads, Dtype dtype, int64_t rows, int64_t columns, int64_t loss_rows, int64_t classes)
      : threads_(threads), dtype_(dtype), N(rows), C(columns), loss_rows_(loss_rows), V(classes) {}

  std::vector<KernelRow> run() {
    norms();
    mlp();
    positions();
    loss();
    plain();
    optimizer();
    return std::move(rows_);
  }

private:
  template <class Make> void add(const std::string& name, const std::string& shape, double exponentials, Make make) {
    Case c(threads_, dtype_);
    rows_.push_back(measure(c, name, shape, make(c), exponentials, threads_));
  }
  std::string shape(int64_t n, int64_t c) const { return concat("[", n, ", ", c, "]"); }

  void norms() {
    for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
      const std::string name = kind == NormKind::rms ? "rms_norm" : "layer_norm";
      const auto bias = [=, this](Case& c) { return kind == NormKind::rms ? Tensor{} : c.numbers({C}); };
      add(name + " forward", shape(N, C), 0, [=, this](Case& c) {
        return norm_forward({.kind = kind,
                             .y = c.numbers({N, C}),
                             .sum = c.numbers({N, C}),
                             .statistics = c.numbers(Dtype::f32, {N, 2}),
                             .x = c.numbers({N, C}),
                             .residual = c.numbers({N, C}),
                             .weight = c.numbers({C}),
                             .bias = bias(c)});
      });
      add(name + " backward", shape(N, C), 0, [=, this](Case& c) {
        return norm_backward({.kind = kind,
                              .dx = c.numbers({N, C}),
                              .dweight = c.numbers(Dtype::f32, {C}),
                              .dbias = kind == NormKind::rms ? Tensor{} : c.numbers(Dtype::f32, {C}),
                              .dy = c.numbers({N, C}),
                              .dresidual = c.numbers({N, C}),
                              .x = c.numbers({N, C}),
                              .statistics = c.numbers(Dtype::f32, {N, 2}),
                              .weight = c.numbers({C})});
      });
    }
  }
  void mlp() {
    const int64_t n = std::max<int64_t>(N * 3 / 8, 1), F = C * 11 / 4; // as wide as a Llama's
    const double one = double(n) * double(F);
    add("swiglu forward", shape(n, F), one, [=](Case& c) {
      return swiglu_forward(c.numbers({n, F}), c.numbers({n, 2 * F}));
    });
    add("swiglu backward", shape(n, F), one, [=](Case& c) {
      return swiglu_backward(c.numbers({n, 2 * F}), c.numbers({n, F}), c.numbers({n, 2 * F}));
    });
    for (const Gelu kind : {Gelu::tanh, Gelu::erf}) {
      const std::string name = kind == Gelu::tanh ? "gelu tanh" : "gelu erf";
      add(name + " forward", shape(n, F), one, [=](Case& c) {
        return gelu_forward(c.numbers({n, F}), c.numbers({n, F}), kind);
      });
      add(name + " backward", shape(n, F), one, [=](Case& c) {
        return gelu_backward(c.numbers({n, F}), c.numbers({n, F}), c.numbers({n, F}), kind);
      });
    }
  }
  void positions() {
    const int64_t period = std::min<int64_t>(N, 512);
    const auto token = [](int64_t i, int64_t limit) { return int32_t(i * 7919 % limit); };
    add("rope", shape(N, C), 0, [=, this](Case& c) {
      return rope(c.numbers({N, C}), c.numbers(Dtype::f32, {period, 64}), 64, false);
    });
    add("embedding forward", shape(N, C), 0, [=, this](Case& c) {
      return embedding_forward(c.numbers({N, C}), c.ints(N, token, N), c.numbers({N, C}), {});
    });
    add("embedding backward", shape(N, C), 0, [=, this](Case& c) {
      const auto quarter = [](int64_t i, int64_t) { return int32_t(i / 4); };
      const auto same = [](int64_t i, int64_t) { return int32_t(i); };
      return embedding_backward(c.numbers(Dtype::f32, {N / 4 + 1, C}), {}, c.numbers({N, C}), c.ints(N, quarter, 0),
                                c.ints(N, same, 0));
    });
  }
  void loss() {
    const auto label = [](int64_t i, int64_t limit) { return int32_t(i * 7919 % limit); };
    for (const bool backward : {false, true})
      add(backward ? "cross entropy and gradient" : "cross entropy", shape(loss_rows_, V),
          (backward ? 2.0 : 1.0) * double(loss_rows_) * double(V), [=, this](Case& c) {
            return cross_entropy(c.constant(loss_rows_, 0), c.numbers({loss_rows_, V}), c.ints(loss_rows_, label, V),
                                 1.0f, backward);
          });
  }
  void plain() {
    add("add", shape(N, C), 0, [this](Case& c) {
      return triax::add(c.numbers({N, C}), c.numbers({N, C}), c.numbers({N, C}));
    });
    add("cast", shape(N, C), 0, [this](Case& c) {
      return cast(c.numbers(dtype_ == Dtype::f32 ? Dtype::bf16 : Dtype::f32, {N, C}), c.numbers({N, C}));
    });
    add("column sum", shape(N, C), 0, [this](Case& c) {
      return column_sum(c.numbers(Dtype::f32, {C}), c.numbers({N, C}));
    });
  }
  void optimizer() {
    const int64_t n = N * C / 4;
    for (const bool stochastic : {false, true}) {
      if (stochastic && dtype_ == Dtype::f32) continue;
      add(stochastic ? "adamw stochastic" : "adamw", concat("[", n, "]"), 0, [=, this](Case& c) {
        return adamw({0.9f, 0.95f, 1e-8f, 0.1f, 0, stochastic, c.numbers({n}),
                      dtype_ == Dtype::f32 ? Tensor{} : c.numbers(Dtype::f32, {n}), c.numbers(Dtype::f32, {n}),
                      c.constant(n, 1.0f), c.numbers(Dtype::f32, {n}), c.state(), c.constant(kStepScalars, 1.0f)});
      });
    }
    if (dtype_ == Dtype::f32)
      add("squared norm", concat("[", n * 4, "]"), 0,
          [=](Case& c) { return squared_norm(c.constant(kStepScalars, 0.0f), c.numbers({n * 4})); });
  }

  int threads_;
  Dtype dtype_;
  int64_t N, C, loss_rows_, V;
  std::vector<KernelRow> rows_;
};

} // namespace

std::vector<KernelRow> bench_kernels(int threads) {
  std::vector<KernelRow> rows;
  const auto append = [&](std::vector<KernelRow> more) {
    rows.insert(rows.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    append(Bench(threads, dtype, 16384, 1024, 512, 50257).run());
    append(Bench(threads, dtype, 128, 1024, 8, 4096).run());
  }
  finish(rows);
  return rows;
}

} // namespace triax
