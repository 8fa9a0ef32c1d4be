// The row-wise kernels, in shapes that come from memory and, on a CPU, in shapes that stay in the cache as well.
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/head_norm.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/step_state.h"
#include "train/bench_kernels.h"
#include <algorithm>

namespace triax {
namespace {

/// For rows [rows, columns], and a loss over [loss_rows, classes].
struct Sizes {
  int64_t rows, columns, loss_rows, classes;
};

/// What the CPU checks: rows that no block divides.
constexpr Sizes kChecked{509, 1024, 37, 50257};

std::vector<Sizes> sizes_of(const BenchPlace& place, BenchSize size) {
  if (size == BenchSize::tiny) return {{64, 128, 4, 512}};
  if (place.gpu()) return {{16384, 4096, 2048, 128256}}; // a tensor is larger than the caches
  return {{16384, 1024, 512, 50257}, {128, 1024, 8, 4096}};
}

class Cases {
public:
  Cases(const Sizes& sizes, Dtype dtype, std::vector<KernelCase>& cases)
      : cases_(cases), dtype_(dtype), N(sizes.rows), C(sizes.columns), loss_rows_(sizes.loss_rows), V(sizes.classes) {}

  void norms() {
    for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
      const std::string name = kind == NormKind::rms ? "rms_norm" : "layer_norm";
      add(name + " forward", shape(N, C), 0, [=, this, N = N, C = C](BenchCase& c) {
        return norm_forward({.kind = kind,
                             .y = c.numbers({N, C}),
                             .sum = c.numbers({N, C}),
                             .statistics = c.numbers(Dtype::f32, {N, 2}),
                             .x = c.numbers({N, C}),
                             .residual = c.numbers({N, C}),
                             .weight = c.numbers({C}),
                             .bias = kind == NormKind::rms ? Tensor{} : c.numbers({C})});
      });
      add(name + " backward", shape(N, C), 0, [=, N = N, C = C](BenchCase& c) {
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

  void head_norms() {
    const int64_t D = std::min<int64_t>(C / 2, 128), queries = C / D / 2;
    add("head_norm forward", shape(N, C), 0, [=, N = N, C = C](BenchCase& c) {
      return head_norm_forward(
          {.queries = queries, .x = c.numbers({N, C}), .before = c.numbers({N, C}), .weight = c.numbers({2 * D})});
    });
    add("head_norm backward", shape(N, C), 0, [=, N = N, C = C](BenchCase& c) {
      return head_norm_backward({.queries = queries,
                                 .dx = c.numbers({N, C}),
                                 .dweight = c.numbers(Dtype::f32, {2 * D}),
                                 .before = c.numbers({N, C}),
                                 .weight = c.numbers({2 * D})});
    });
  }

  void mlp() {
    const int64_t n = std::max<int64_t>(N * 3 / 8, 1), F = C * 11 / 4; // as wide as a Llama's
    const double one = double(n) * double(F);
    add("swiglu forward", shape(n, F), one, [=](BenchCase& c) {
      return swiglu_forward(c.numbers({n, F}), c.numbers({n, 2 * F}));
    });
    add("swiglu backward", shape(n, F), one, [=](BenchCase& c) {
      return swiglu_backward(c.numbers({n, 2 * F}), c.numbers({n, F}), c.numbers({n, 2 * F}));
    });
    for (const Gelu kind : {Gelu::tanh, Gelu::erf}) {
      const std::string name = kind == Gelu::tanh ? "gelu tanh" : "gelu erf";
      add(name + " forward", shape(n, F), one, [=](BenchCase& c) {
        return gelu_forward(c.numbers({n, F}), c.numbers({n, F}), kind);
      });
      add(name + " backward", shape(n, F), one, [=](BenchCase& c) {
        return gelu_backward(c.numbers({n, F}), c.numbers({n, F}), c.numbers({n, F}), kind);
      });
    }
  }

  void positions() {
    const int64_t period = std::min<int64_t>(N, 512), D = std::min<int64_t>(C, 64);
    add("rope", shape(N, C), 0, [=, N = N, C = C](BenchCase& c) {
      return rope(c.numbers({N, C}), c.numbers(Dtype::f32, {period, D}), D, false);
    });
    add("embedding forward", shape(N, C), 0, [N = N, C = C](BenchCase& c) {
      return embedding_forward(c.numbers({N, C}), c.ints(N, [N](int64_t i) { return i * 7919 % N; }), c.numbers({N, C}),
                               {});
    });
    add("embedding backward", shape(N, C), 0, [N = N, C = C](BenchCase& c) {
      return embedding_backward(c.numbers(Dtype::f32, {N / 4 + 1, C}), {}, c.numbers({N, C}),
                                c.ints(N, [](int64_t i) { return i / 4; }), c.ints(N, [](int64_t i) { return i; }));
    });
  }

  void loss() {
    for (const bool backward : {false, true})
      add(backward ? "cross entropy and gradient" : "cross entropy", shape(loss_rows_, V),
          (backward ? 2.0 : 1.0) * double(loss_rows_) * double(V), [=, n = loss_rows_, V = V](BenchCase& c) {
            return cross_entropy(c.constant({n}, 0), c.numbers({n, V}),
                                 c.ints(n, [V](int64_t i) { return i * 7919 % V; }), 1.0f, backward);
          });
  }

  void plain() {
    add("add", shape(N, C), 0, [N = N, C = C](BenchCase& c) {
      return triax::add(c.numbers({N, C}), c.numbers({N, C}), c.numbers({N, C}));
    });
    add("cast", shape(N, C), 0, [N = N, C = C](BenchCase& c) {
      return cast(c.numbers(c.dtype() == Dtype::f32 ? Dtype::bf16 : Dtype::f32, {N, C}), c.numbers({N, C}));
    });
    add("column sum", shape(N, C), 0, [N = N, C = C](BenchCase& c) {
      return column_sum(c.numbers(Dtype::f32, {C}), c.numbers({N, C}));
    });
  }

  void optimizer() {
    const int64_t n = N * C / 4;
    for (const bool stochastic : {false, true}) {
      if (stochastic && dtype_ == Dtype::f32) continue;
      add(stochastic ? "adamw stochastic" : "adamw", concat("[", n, "]"), 0, [=](BenchCase& c) {
        return adamw({0.9f, 0.95f, 1e-8f, 0.1f, 0, n, n, stochastic, c.numbers({n}),
                      c.dtype() == Dtype::f32 ? Tensor{} : c.numbers(Dtype::f32, {n}), c.numbers(Dtype::f32, {n}),
                      c.constant({n}, 1.0f), c.numbers(Dtype::f32, {n}), c.step_state(),
                      c.constant({kStepScalars}, 1.0f)});
      });
    }
    if (dtype_ == Dtype::f32)
      add("squared norm", concat("[", n * 4, "]"), 0, [=](BenchCase& c) {
        const Tensor blocks = c.constant({(n * 4 + kNormBlock - 1) / kNormBlock}, 0.0f);
        return squared_norm(blocks, c.numbers({n * 4}), c.step_state(), {n * 4, 1, n * 4, 1});
      });
  }

private:
  void add(const std::string& name, const std::string& shape, double exponentials, KernelCase::Make make) {
    cases_.push_back({KernelKind::rows, name, shape, dtype_, exponentials, std::move(make)});
  }
  static std::string shape(int64_t n, int64_t c) { return concat("[", n, ", ", c, "]"); }

  std::vector<KernelCase>& cases_;
  Dtype dtype_;
  int64_t N, C, loss_rows_, V;
};

std::vector<KernelCase> cases_of(const Sizes& sizes, Dtype dtype) {
  std::vector<KernelCase> all;
  Cases cases(sizes, dtype, all);
  cases.norms();
  cases.head_norms();
  cases.mlp();
  cases.positions();
  cases.loss();
  cases.plain();
  cases.optimizer();
  return all;
}

} // namespace

std::vector<KernelCase> row_wise_cases(const BenchPlace& place, Dtype dtype, BenchSize size) {
  const std::vector<KernelCase> checked = cases_of(kChecked, dtype);
  std::vector<KernelCase> all;
  for (const Sizes& sizes : sizes_of(place, size))
    for (const KernelCase& k : cases_of(sizes, dtype)) {
      const size_t in_order = all.size() % checked.size();
      all.push_back(k);
      all.back().small = checked[in_order].make;
    }
  return all;
}

} // namespace triax
