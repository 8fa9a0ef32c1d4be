// Every operation on the GPU against the same operation on the CPU, which its own tests hold to the oracle; and the
// same bits when it runs again.
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/head_norm.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/step_state.h"
#include "tests/cuda.h"
#include "tests/oracle.h"
#include <cmath>
#include <cstring>
#include <functional>

namespace triax {
namespace {

using Bytes = std::vector<std::byte>;
using oracle::Vec;
constexpr Dtype kF32 = Dtype::f32, kBf16 = Dtype::bf16;

uint16_t to_bf16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// The same operands on any device; what is written is read back in this order.
class Operands {
public:
  explicit Operands(Device& device) : device_(device) {}
  /// Uniform in [-1, 1], another row of numbers at each call.
  Tensor in(Dtype dtype, std::initializer_list<int64_t> shape) {
    const Tensor t = space(dtype, shape);
    const Vec values = oracle::random(size_t(t.size()), ++seed_);
    Bytes bytes(size_t(t.bytes()));
    for (size_t i = 0; i < values.size(); ++i) {
      const float f = float(values[i]);
      const uint16_t h = to_bf16(f);
      std::memcpy(&bytes[i * size_t(bytes_of(dtype))], dtype == kF32 ? static_cast<const void*>(&f) : &h,
                  size_t(bytes_of(dtype)));
    }
    device_.write(t, bytes.data());
    return t;
  }
  Tensor ints(const std::vector<int32_t>& values) {
    const Tensor t = space(Dtype::i32, {int64_t(values.size())});
    device_.write(t, values.data());
    return t;
  }
  template <class T> Tensor bytes(const T& value) {
    const Tensor t = space(Dtype::u8, {int64_t(sizeof(T))});
    device_.write(t, &value);
    return t;
  }
  void overwrite(const Tensor& t, const Bytes& bytes) { device_.write(t, bytes.data()); }
  void square(const Tensor& t) { // f32
    std::vector<float> x(size_t(t.size()));
    device_.read(t, x.data());
    for (float& v : x) v *= v;
    device_.write(t, x.data());
  }
  Tensor out(const Tensor& t) { // to be compared
    outputs_.push_back(t);
    return t;
  }
  Tensor out(Dtype dtype, std::initializer_list<int64_t> shape) { return out(in(dtype, shape)); }
  std::vector<Bytes> read() {
    std::vector<Bytes> all;
    for (const Tensor& t : outputs_) device_.read(t, all.emplace_back(size_t(t.bytes())).data());
    return all;
  }
  const std::vector<Tensor>& outputs() const { return outputs_; }

private:
  Tensor space(Dtype dtype, std::initializer_list<int64_t> shape) {
    return device_.persistent("operand", Purpose::inputs, dtype, shape);
  }
  Device& device_;
  uint64_t seed_ = 0;
  std::vector<Tensor> outputs_;
};

Vec values_of(const Bytes& bytes, Dtype dtype) {
  Vec values(bytes.size() / size_t(bytes_of(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &bytes[i * size_t(bytes_of(dtype))], size_t(bytes_of(dtype)));
    if (dtype == kBf16) bits <<= 16;
    float f;
    std::memcpy(&f, &bits, 4);
    values[i] = double(f);
  }
  return values;
}

using Build = std::function<Op(Operands&)>;
std::vector<Bytes> run(Device& device, const Build& build, std::vector<Tensor>* outputs = nullptr) {
  Operands operands(device);
  device.compute().run(build(operands));
  if (outputs) *outputs = operands.outputs();
  return operands.read();
}

/// f32 differs by the order of sums and by exp; bf16 by a unit of its 8 digits here and there.
void check(Device& gpu, const std::string& name, const Build& build) {
  CAPTURE(name);
  const auto cpu = Device::open({}, 1);
  std::vector<Tensor> outputs;
  const std::vector<Bytes> want = run(*cpu, build, &outputs), got = run(gpu, build);
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    const Dtype dtype = outputs[i].dtype;
    if (dtype == kF32 || dtype == kBf16)
      CHECK(oracle::relative_error(values_of(got[i], dtype), values_of(want[i], dtype)) <
            (dtype == kF32 ? 2e-6 : 4e-3));
    else
      CHECK(got[i] == want[i]);
  }
  CHECK(run(gpu, build) == got);
}

/// Calls f for f32 and bf16, with the name of the dtype.
void for_dtypes(const std::function<void(Dtype, const std::string&)>& f) {
  for (const Dtype dtype : {kF32, kBf16}) f(dtype, concat(" ", name_of(dtype)));
}

TEST_SUITE_BEGIN("cuda_kernels");

TEST_CASE("cuda: norm") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  for_dtypes([&](Dtype t, const std::string& type) {
    for (const int64_t C : {1, 7, 64, 200, 1000})
      for (const NormKind kind : {NormKind::rms, NormKind::layer}) {
        const int64_t N = 131;
        const std::string name = concat(int(kind), type, " ", C);
        const bool layer = kind == NormKind::layer;
        check(*gpu, "norm_forward " + name, [&](Operands& o) {
          return norm_forward({.kind = kind,
                               .y = o.out(t, {N, C}),
                               .sum = o.out(t, {N, C}),
                               .statistics = o.out(kF32, {N, 2}),
                               .x = o.in(t, {N, C}),
                               .residual = o.in(t, {N, C}),
                               .weight = o.in(t, {C}),
                               .bias = layer ? o.in(t, {C}) : Tensor{}});
        });
        check(*gpu, "norm_backward " + name, [&](Operands& o) {
          return norm_backward({.kind = kind,
                                .dx = o.out(t, {N, C}),
                                .dweight = o.out(kF32, {C}),
                                .dbias = layer ? o.out(kF32, {C}) : Tensor{},
                                .dy = o.in(t, {N, C}),
                                .dresidual = o.in(t, {N, C}),
                                .x = o.in(t, {N, C}),
                                .statistics = o.in(kF32, {N, 2}),
                                .weight = o.in(t, {C})});
        });
      }
  });
}

TEST_CASE("cuda: head_norm") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  const int64_t N = 131, H = 3, G = 2;
  for_dtypes([&](Dtype t, const std::string& type) {
    for (const int64_t D : {4, 5, 64, 128, 200}) {
      const std::string name = concat(type, " ", D);
      // Rows of a packed q, k, v, of which the values are no part.
      const auto heads = [&](const Tensor& packed) { return packed.slice(1, 0, (H + G) * D); };
      check(*gpu, "head_norm_forward" + name, [&](Operands& o) {
        return head_norm_forward({.queries = H,
                                  .x = heads(o.out(t, {N, (H + 2 * G) * D})),
                                  .before = o.out(t, {N, (H + G) * D}),
                                  .weight = o.in(t, {2 * D})});
      });
      check(*gpu, "head_norm_backward" + name, [&](Operands& o) {
        return head_norm_backward({.queries = H,
                                   .dx = heads(o.out(t, {N, (H + 2 * G) * D})),
                                   .dweight = o.out(kF32, {2 * D}),
                                   .before = o.in(t, {N, (H + G) * D}),
                                   .weight = o.in(t, {2 * D})});
      });
    }
  });
}

TEST_CASE("cuda: embedding") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  const std::vector<int32_t> tokens{4, 0, 4, 2, 4, 0, 1, 4}, order{1, 5, 6, 3, 0, 2, 4, 7};
  const int64_t N = 8, V = 5, T = 4;
  for_dtypes([&](Dtype t, const std::string& type) {
    for (const int64_t C : {3, 64, 264})
      for (const bool positions : {false, true}) {
        const std::string name = concat(type, " ", C, positions ? " positions" : "");
        check(*gpu, "embedding_forward" + name, [&](Operands& o) {
          return embedding_forward(o.out(t, {N, C}), o.ints(tokens), o.in(t, {V, C}),
                                   positions ? o.in(t, {T, C}) : Tensor{});
        });
        check(*gpu, "embedding_backward" + name, [&](Operands& o) {
          return embedding_backward(o.out(kF32, {V, C}), positions ? o.out(kF32, {T, C}) : Tensor{}, o.in(t, {N, C}),
                                    o.ints(tokens), o.ints(order));
        });
      }
  });
}

TEST_CASE("cuda: rope, swiglu, gelu") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  const int64_t N = 66, T = 33;
  for_dtypes([&](Dtype t, const std::string& type) {
    for (const int64_t D : {2, 48, 128})
      for (const bool inverse : {false, true})
        check(*gpu, concat("rope", type, " ", D), [&](Operands& o) {
          return rope(o.out(t, {N, 5 * D}).slice(1, D, 3 * D), o.in(kF32, {T, D}), D, inverse);
        });
    for (const int64_t F : {5, 320}) {
      const std::string name = concat(type, " ", F);
      check(*gpu, "swiglu_forward" + name, [&](Operands& o) {
        return swiglu_forward(o.out(t, {N, F}), o.in(t, {N, 2 * F}));
      });
      check(*gpu, "swiglu_backward" + name, [&](Operands& o) {
        return swiglu_backward(o.out(t, {N, 2 * F}), o.in(t, {N, F}), o.in(t, {N, 2 * F}));
      });
      for (const Gelu kind : {Gelu::tanh, Gelu::erf}) {
        check(*gpu, "gelu_forward" + name, [&](Operands& o) {
          return gelu_forward(o.out(t, {N, F}), o.in(t, {N, F}), kind);
        });
        check(*gpu, "gelu_backward" + name, [&](Operands& o) {
          return gelu_backward(o.out(t, {N, F}), o.in(t, {N, F}), o.in(t, {N, F}), kind);
        });
      }
    }
  });
}

struct Heads {
  int64_t B, T, H, G, D;
  int64_t window = 0;
};
std::vector<int32_t> document_starts(const Heads& s) {
  std::vector<int32_t> start;
  for (int64_t b = 0; b < s.B; ++b)
    for (int32_t t = 0, from = 0; t < s.T; ++t) {
      if ((t * 7 + b * 3) % 23 == 5) from = t;
      start.push_back(from);
    }
  return start;
}

TEST_CASE("cuda: attention") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  for_dtypes([&](Dtype t, const std::string& type) {
    for (const Heads& s : {Heads{1, 1, 1, 1, 8}, Heads{2, 67, 4, 2, 16}, Heads{1, 33, 3, 1, 5}, Heads{2, 130, 2, 2, 64},
                           Heads{1, 131, 6, 2, 80}, Heads{1, 97, 2, 1, 128}, Heads{1, 77, 2, 1, 256},
                           // windows within a tile, of one, of several, with and without tensor cores
                           Heads{2, 130, 2, 2, 64, 1}, Heads{1, 200, 4, 2, 64, 64}, Heads{1, 200, 2, 1, 96, 70},
                           Heads{1, 330, 2, 1, 128, 199}, Heads{1, 131, 6, 2, 80, 30}, Heads{2, 67, 4, 2, 16, 65}}) {
      const std::string name = concat(type, " T ", s.T, " D ", s.D, " window ", s.window);
      const AttentionShape shape{s.B, s.T, s.H, s.G, s.D, float(1.0 / std::sqrt(double(s.D))), s.window};
      const int64_t N = s.B * s.T, wide = (s.H + 2 * s.G) * s.D, narrow = s.H * s.D;
      const auto forward = [&](Operands& o, const Tensor& out, const Tensor& lse, const Tensor& qkv) {
        return attention_forward({shape, out, lse, qkv, o.ints(document_starts(s))});
      };
      check(*gpu, "attention_forward" + name, [&](Operands& o) {
        return forward(o, o.out(t, {N, narrow}), o.out(kF32, {s.B, s.H, s.T}), o.in(t, {N, wide}));
      });
      // The backward pass is given the statistics that belong to its rows.
      const auto cpu = Device::open({}, 1);
      Operands before(*cpu);
      const Tensor qkv = before.in(t, {N, wide}), out = before.out(t, {N, narrow}),
                   lse = before.out(kF32, {s.B, s.H, s.T});
      cpu->compute().run(forward(before, out, lse, qkv));
      const std::vector<Bytes> statistics = before.read();
      check(*gpu, "attention_backward" + name, [&](Operands& o) {
        const Tensor again = o.in(t, {N, wide}), y = o.in(t, {N, narrow}), l = o.in(kF32, {s.B, s.H, s.T});
        o.overwrite(y, statistics[0]);
        o.overwrite(l, statistics[1]);
        return attention_backward(
            {shape, o.out(t, {N, wide}), o.in(t, {N, narrow}), y, l, again, o.ints(document_starts(s))});
      });
    }
  });
}

TEST_CASE("cuda: loss") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  const std::vector<int32_t> labels{0, 2, -1, 1, 2};
  for_dtypes([&](Dtype t, const std::string& type) {
    for (const int64_t V : {3, 64, 50257})
      for (const bool backward : {false, true})
        check(*gpu, concat("cross_entropy", type, " ", V, " ", backward), [&](Operands& o) {
          return cross_entropy(o.out(kF32, {5}), o.out(t, {5, V}), o.ints(labels), 0.25f, backward);
        });
  });
  check(*gpu, "sum_losses",
        [&](Operands& o) { return sum_losses(o.out(kF32, {kStepScalars}), o.in(kF32, {5}), o.ints(labels)); });
}

TEST_CASE("cuda: optimizer") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  const StepState state{.seed = 5, .step = 3, .learning_rate = 0.01f, .moment1_scale = 3.7f, .moment2_scale = 7.1f};
  for (const int64_t n : {1, 1003, 70000})
    for_dtypes([&](Dtype t, const std::string& type) {
      for (const bool stochastic : {false, true})
        check(*gpu, concat("adamw", type, " ", n, stochastic ? " stochastic" : ""), [&](Operands& o) {
          const Tensor weights = o.out(t, {n}), moment2 = o.in(kF32, {n});
          o.square(moment2);
          return adamw({.beta1 = 0.9f,
                        .beta2 = 0.95f,
                        .eps = 1e-8f,
                        .decay = 0.1f,
                        .first = 12345,
                        .decay_to = 12345 + n / 2,
                        .shared_from = 1 << 30,
                        .stochastic = stochastic && t == kBf16,
                        .weights = weights,
                        .master = t == kBf16 ? o.out(kF32, {n}) : Tensor{},
                        .moment1 = o.out(kF32, {n}),
                        .moment2 = o.out(moment2),
                        .gradient = o.in(kF32, {n}),
                        .state = o.bytes(state),
                        .scalars = o.in(kF32, {kStepScalars})});
        });
      if (t == kF32)
        check(*gpu, concat("squared_norm ", n), [&](Operands& o) {
          const int64_t blocks = (n + kNormBlock - 1) / kNormBlock;
          return squared_norm(o.out(kF32, {blocks}), o.in(kF32, {n}), o.bytes(state), {n / 2, 3, n, 6});
        });
    });
  check(*gpu, "norm_total", [&](Operands& o) { return norm_total(o.out(kF32, {1}), o.in(kF32, {3, 1001}), 2500); });
  check(*gpu, "finish_gradients", [&](Operands& o) { return finish_gradients(o.out(kF32, {kStepScalars}), 64, 1); });
}

TEST_CASE("cuda: plain operations") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  for (const int64_t n : {1, 1003, 70000})
    for_dtypes([&](Dtype t, const std::string& type) {
      const std::string name = concat(type, " ", n);
      check(*gpu, "fill" + name, [&](Operands& o) { return fill(o.out(t, {n}), 1.5f); });
      check(*gpu, "add" + name, [&](Operands& o) { return add(o.out(t, {n}), o.in(t, {n}), o.in(t, {n})); });
      check(*gpu, "cast" + name, [&](Operands& o) { return cast(o.out(t == kF32 ? kBf16 : kF32, {n}), o.in(t, {n})); });
      check(*gpu, "copy" + name, [&](Operands& o) { return copy(o.out(t, {n}), o.in(t, {n})); });
      check(*gpu, "normal_fill" + name, [&](Operands& o) { return normal_fill(o.out(t, {n}), 0.02f, 7, 1, 99); });
      check(*gpu, "column_sum" + name, [&](Operands& o) { return column_sum(o.out(kF32, {n}), o.in(t, {67, n})); });
    });
}

TEST_CASE("cuda: matmul") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  struct Size {
    int64_t m, n, k;
  };
  for (const Size& s : {Size{1, 1, 1}, Size{7, 1, 33}, Size{31, 37, 29}, Size{64, 48, 32}, Size{257, 136, 512}})
    for (const auto& types : {std::pair{kF32, kF32}, {kBf16, kF32}, {kBf16, kBf16}})
      for (int form = 0; form < 16; ++form) {
        const Dtype t = types.first, result = types.second;
        const bool ta = form & 1, tb = form & 2, bias = form & 4, accumulate = form & 8;
        const int64_t gap = form % 3 * 8;
        const std::string name =
            concat("matmul ", name_of(t), " ", name_of(result), " ", s.m, " ", s.n, " ", s.k, " form ", form);
        check(*gpu, name, [&](Operands& o) {
          const auto matrix = [&](Dtype dtype, int64_t rows, int64_t columns) {
            return o.in(dtype, {rows, columns + gap}).slice(1, gap, columns);
          };
          const Tensor a = matrix(t, ta ? s.k : s.m, ta ? s.m : s.k), b = matrix(t, tb ? s.n : s.k, tb ? s.k : s.n);
          return matmul({.c = o.out(result, {s.m, s.n + gap}).slice(1, 0, s.n),
                         .a = a,
                         .b = b,
                         .bias = bias ? o.in(t, {s.n}) : Tensor{},
                         .transpose_a = ta,
                         .transpose_b = tb,
                         .accumulate = accumulate});
        });
      }
}

TEST_SUITE_END();

} // namespace
} // namespace triax
