// The kernels that are held to the machine's matrix rate: attention and matrix products.
#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "train/bench_kernels.h"
#include <algorithm>
#include <cmath>

namespace triax {
namespace {

/// B sequences of T, H heads, as many for keys and values.
struct Heads {
  int64_t B, T, H, D;
};

AttentionShape shape_of(const Heads& s) {
  AttentionShape shape{s.B, s.T, s.H, s.H, s.D, float(1 / std::sqrt(double(s.D)))};
  shape.documents = false;
  return shape;
}

AttentionForward operands(BenchCase& c, const Heads& s) {
  const int64_t N = s.B * s.T, wide = s.H * s.D;
  return {shape_of(s), c.numbers({N, wide}), c.numbers(Dtype::f32, {s.B, s.H, s.T}), c.numbers({N, 3 * wide}),
          c.ints(N, [](int64_t) { return 0; })};
}

Op forward(BenchCase& c, const Heads& s) { return attention_forward(operands(c, s)); }

/// With the output and the sums that belong to the queries, keys and values: other ones would be no probabilities.
Op backward(BenchCase& c, const Heads& s) {
  const AttentionForward f = operands(c, s);
  c.device().compute().run(attention_forward(f));
  const int64_t N = s.B * s.T, wide = s.H * s.D;
  return attention_backward(
      {f.shape, c.numbers({N, 3 * wide}), c.numbers({N, wide}), f.out, f.lse, f.qkv, f.document_start});
}

/// Of a model: tokens at a time, width, columns of queries, keys and values, of the MLP, classes and their rows.
struct Sizes {
  int64_t tokens, width, qkv, mlp, classes, loss_rows;
};

Sizes model_sizes(const BenchPlace& place, BenchSize size) {
  if (size == BenchSize::tiny) return {64, 32, 96, 64, 256, 32};
  if (place.gpu()) return {8192, 4096, 12288, 11008, 32000, 2048}; // llama2-7b
  return {4096, 512, 1024, 1408, 50304, 512};                      // the 512 wide model of `bench training`
}

/// y[N, O] = x[N, I] w[O, I]^T and its two gradients; at most `most` rows, for the check.
struct Linear {
  std::string name;
  int64_t N, O, I;
};

Op product(BenchCase& c, const Linear& l, char layout, int64_t most) {
  const int64_t N = std::min(l.N, most);
  if (layout == 'y')
    return matmul(
        {.c = c.numbers({N, l.O}), .a = c.numbers({N, l.I}), .b = c.numbers({l.O, l.I}), .transpose_b = true});
  if (layout == 'x') return matmul({.c = c.numbers({N, l.I}), .a = c.numbers({N, l.O}), .b = c.numbers({l.O, l.I})});
  return matmul({.c = c.numbers(Dtype::f32, {l.O, l.I}),
                 .a = c.numbers({N, l.O}),
                 .b = c.numbers({N, l.I}),
                 .transpose_a = true,
                 .accumulate = true});
}

constexpr int64_t kCheckedRows = 128;

} // namespace

std::vector<KernelCase> attention_cases(const BenchPlace& place, Dtype dtype, BenchSize size) {
  const bool tiny = size == BenchSize::tiny;
  const int64_t width = tiny ? 128 : place.gpu() ? 2048 : 512, tokens = tiny ? 128 : place.gpu() ? 16384 : 4096;
  std::vector<int64_t> lengths{512, 1024, 2048, 4096};
  if (place.gpu()) lengths.push_back(8192);
  if (tiny) lengths = {64, 128};
  std::vector<KernelCase> cases;
  for (const int64_t D : {64, 128})
    for (const int64_t T : lengths) {
      if (place.gpu() && dtype == Dtype::f32 && T > 2048) continue; // no one trains so, and it takes seconds
      const Heads s{tokens / T, T, width / D, D}, small{1, T, 2, D};
      const std::string shape = concat("B ", s.B, " T ", T, " H ", s.H, " D ", D);
      for (const bool back : {false, true}) {
        const auto make = back ? backward : forward;
        cases.push_back({KernelKind::attention, back ? "attention backward" : "attention forward", shape, dtype, 0,
                         [=](BenchCase& c) { return make(c, s); }, [=](BenchCase& c) { return make(c, small); }});
      }
    }
  return cases;
}

std::vector<KernelCase> product_cases(const BenchPlace& place, Dtype dtype, BenchSize size) {
  const Sizes s = model_sizes(place, size);
  const Linear linears[] = {{"qkv", s.tokens, s.qkv, s.width},
                            {"up", s.tokens, 2 * s.mlp, s.width},
                            {"down", s.tokens, s.width, s.mlp},
                            {"head", s.loss_rows, s.classes, s.width}};
  std::vector<KernelCase> cases;
  for (const Linear& l : linears)
    for (const char layout : {'y', 'x', 'w'}) {
      const std::string name = layout == 'y' ? "NT " : layout == 'x' ? "NN " : "TN ";
      const int64_t m = layout == 'w' ? l.O : l.N, n = layout == 'y' ? l.O : l.I,
                    k = layout == 'y'   ? l.I
                        : layout == 'x' ? l.O
                                        : l.N;
      cases.push_back({KernelKind::matmul, "matmul " + name + l.name, concat("[", m, ", ", k, "] [", k, ", ", n, "]"),
                       dtype, 0, [=](BenchCase& c) { return product(c, l, layout, l.N); },
                       [=](BenchCase& c) { return product(c, l, layout, kCheckedRows); }});
    }
  return cases;
}

} // namespace triax
