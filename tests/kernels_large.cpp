// Indices beyond 2^31: each kernel on tensors of so many elements, of which only the last blocks are run, emulated, and
// only the last rows exist in memory. What comes out must be what the same rows give alone.
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/head_norm.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/step_state.h"
#include "tests/kernel_check.h"
#include <sys/mman.h>

namespace triax {
namespace {

using namespace test;

constexpr Dtype kF32 = Dtype::f32, kBf16 = Dtype::bf16, kI32 = Dtype::i32;
constexpr int64_t kMany = int64_t(1) << 31;
constexpr double kRandom = 0.123, kLastRow = -1, kNumbered = -2;

/// Rows of `columns` elements, many or just those of the tail; in the tail they hold `value`.
struct Operand {
  Dtype dtype;
  int64_t columns;
  bool many = true;
  double value = kRandom;
  bool compared = true;
};

/// Zeros, of which those pages take memory that are touched.
class Mapped {
public:
  explicit Mapped(size_t bytes) : bytes_(std::max<size_t>(bytes, 1)) {
    at_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(at_ != MAP_FAILED);
  }
  ~Mapped() { munmap(at_, bytes_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  uint64_t address() const { return reinterpret_cast<uint64_t>(at_); }

private:
  void* at_;
  size_t bytes_;
};

/// There are so many rows or a multiple: then each partial sum of a norm's gradients has equally many.
constexpr int64_t kRows = 512;

using Tensors = std::vector<Tensor>;
using Make = std::function<Op(const Tensors& tensors, int64_t rows)>;

struct Check {
  std::vector<Operand> operands;
  Make make;
  int64_t columns = 1;  ///< of the operand that has 2^31 elements
  int64_t tail = 2;     ///< rows
  uint64_t blocks = 2;  ///< that do them
  bool complete = true; ///< no launch reads what a block that is not run writes
};

/// The operands' last `tail` rows after the operation on `rows` of them.
std::vector<std::vector<uint8_t>> run(const Check& c, int64_t rows, const char* units) {
  std::vector<std::unique_ptr<Mapped>> memory;
  std::vector<char*> tails;
  std::vector<size_t> sizes;
  Tensors tensors;
  for (size_t n = 0; n < c.operands.size(); ++n) {
    const Operand& o = c.operands[n];
    const int64_t all = o.many ? rows : c.tail, size = bytes_of(o.dtype);
    memory.push_back(std::make_unique<Mapped>(size_t(all * o.columns * size)));
    tensors.push_back(Tensor::dense(memory.back()->address(), Space::device, o.dtype, {all, o.columns}));
    tails.push_back(tensors.back().data<char>() + (all - c.tail) * o.columns * size);
    sizes.push_back(size_t(c.tail * o.columns * size));
    const Vec random = numbers(o.dtype == kBf16 ? kBf16 : kF32, c.tail * o.columns, n + 1);
    for (int64_t i = 0; i < c.tail * o.columns; ++i) {
      const double value = o.value == kRandom     ? random[size_t(i)]
                           : o.value == kLastRow  ? double(rows - 1)
                           : o.value == kNumbered ? double(i)
                                                  : o.value;
      uint32_t u = o.dtype == kI32 ? uint32_t(int32_t(value)) : bits_of_float(float(value));
      if (o.dtype == kBf16) u >>= 16;
      std::memcpy(tails.back() + i * size, &u, size_t(size));
    }
  }
  const emulation::Emulation emulation(units);
  emulation::schedule.last_blocks = c.blocks;
  const Op op = c.make(tensors, rows);
  const int64_t bytes = op.kind->describe(Target::parse("sm_90a"), op).scratch;
  const Mapped scratch{size_t(bytes)};
  const Tensor part = Tensor::dense(scratch.address(), Space::device, Dtype::u8, {bytes});
  const emulation::Declared declared(op, bytes ? part : Tensor{});
  find_launch(*op.kind, Target::Kind::cuda)(op, {nullptr, 1, part});
  std::vector<std::vector<uint8_t>> results;
  for (size_t n = 0; n < tails.size(); ++n)
    if (c.operands[n].compared) results.emplace_back(tails[n], tails[n] + sizes[n]);
  return results;
}

void check(const char* name, const Check& c) {
  CAPTURE(std::string(name));
  const int64_t least = kMany / c.columns + 1, rows = (least + kRows - 1) / kRows * kRows;
  for (const char* units : {"emulated", "races"}) {
    if (!c.complete && units == std::string("races")) continue;
    CAPTURE(std::string(units));
    CHECK((run(c, rows, units) == run(c, c.tail, units)));
  }
}

TEST_SUITE_BEGIN("kernels_large");

TEST_CASE("norm, head_norm, swiglu, rope, loss: rows beyond 2^31 elements") {
  const int64_t C = 64;
  check("norm_forward", {{{kBf16, C}, {kBf16, C}, {kF32, 2}, {kBf16, C}, {kBf16, C}, {kBf16, C / 2, false}},
                         [](const Tensors& t, int64_t) {
                           NormForward f;
                           f.kind = NormKind::layer;
                           f.y = t[0];
                           f.sum = t[1];
                           f.statistics = t[2];
                           f.x = t[3];
                           f.residual = t[4];
                           f.weight = t[5].view({64});
                           return norm_forward(f);
                         },
                         C});
  const int64_t W = int64_t(1) << 17;
  check("norm_backward",
        {{{kF32, W}, {kF32, W / 2, false, 0, false}, {kF32, W}, {kF32, W}, {kF32, 2}, {kF32, W / 2, false}},
         [](const Tensors& t, int64_t) {
           NormBackward b;
           b.kind = NormKind::rms;
           b.dx = t[0];
           b.dweight = t[1].view({t[0].dim[1]});
           b.dy = t[2];
           b.x = t[3];
           b.statistics = t[4];
           b.weight = t[5].view({t[0].dim[1]});
           return norm_backward(b);
         },
         W,
         2,
         2,
         false});
  check("head_norm_forward", {{{kBf16, C}, {kBf16, C}, {kBf16, 32, false}},
                              [](const Tensors& t, int64_t) {
                                HeadNormForward f;
                                f.queries = 1;
                                f.x = t[0];
                                f.before = t[1];
                                f.weight = t[2].view({64});
                                return head_norm_forward(f);
                              },
                              C});
  check("swiglu_forward",
        {{{kBf16, C}, {kBf16, 2 * C}}, [](const Tensors& t, int64_t) { return swiglu_forward(t[0], t[1]); }, C});
  check("swiglu_backward", {{{kBf16, 2 * C}, {kBf16, C}, {kBf16, 2 * C}},
                            [](const Tensors& t, int64_t) { return swiglu_backward(t[0], t[1], t[2]); },
                            C});
  check("rope",
        {{{kBf16, C}, {kF32, 32, false}}, [](const Tensors& t, int64_t) { return rope(t[0], t[1], 32, false); }, C});
  check("cross_entropy", {{{kF32, 1}, {kBf16, 1001}, {kI32, 1, true, 3}},
                          [](const Tensors& t, int64_t rows) {
                            return cross_entropy(t[0].view({rows}), t[1], t[2].view({rows}), 0.5f, true);
                          },
                          1001});
}

TEST_CASE("embedding, adamw, plain operations: elements beyond 2^31") {
  check("embedding_forward",
        {{{kBf16, 64, false}, {kI32, 1, false, kLastRow, false}, {kBf16, 64}},
         [](const Tensors& t, int64_t) { return embedding_forward(t[0], t[1].view({2}), t[2], {}); },
         64});
  check("embedding_backward",
        {{{kF32, 64}, {kBf16, 64, false}, {kI32, 1, false, kLastRow, false}, {kI32, 1, false, kNumbered}},
         [](const Tensors& t, int64_t) { return embedding_backward(t[0], {}, t[1], t[2].view({2}), t[3].view({2})); },
         64});
  const auto flat = [](const Tensor& t) { return t.view({t.dim[0]}); };
  check("adamw",
        {{{kBf16, 1}, {kF32, 1}, {kF32, 1}, {kF32, 1, true, 0.5}, {kF32, 1}, {kF32, kStepScalars / 2, false, 1}},
         [&](const Tensors& t, int64_t rows) {
           static const StepState state{
               .seed = 5, .step = 3, .learning_rate = 0.01f, .moment1_scale = 3.7f, .moment2_scale = 7.1f};
           AdamW a{.beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .eps = 1e-8f,
                   .decay = 0.1f,
                   .first = 2 * kMany - rows,
                   .decay_to = 2 * kMany,
                   .shared_from = 4 * kMany,
                   .stochastic = true,
                   .weights = flat(t[0]),
                   .master = flat(t[1]),
                   .moment1 = flat(t[2]),
                   .moment2 = flat(t[3]),
                   .gradient = flat(t[4]),
                   .state = {},
                   .scalars = {}};
           a.state =
               Tensor::dense(reinterpret_cast<uint64_t>(&state), Space::device, Dtype::u8, {int64_t(sizeof(state))});
           a.scalars = t[5].view({kStepScalars});
           return adamw(a);
         }});
  check("squared_norm", {{{kF32, 1}, {kF32, kNormBlock}},
                         [&](const Tensors& t, int64_t) {
                           static const StepState state{};
                           const auto at = reinterpret_cast<uint64_t>(&state);
                           const Tensor s = Tensor::dense(at, Space::device, Dtype::u8, {int64_t(sizeof(state))});
                           return squared_norm(flat(t[0]), t[1].view({t[1].size()}), s, {4 * kMany, 1, 4 * kMany, 1});
                         },
                         kNormBlock});
  check("add", {{{kBf16, 1}, {kBf16, 1}, {kBf16, 1}},
                [&](const Tensors& t, int64_t) { return add(flat(t[0]), flat(t[1]), flat(t[2])); }});
  check("fill", {{{kBf16, 1}}, [&](const Tensors& t, int64_t) { return fill(flat(t[0]), 3); }});
  check("cast", {{{kBf16, 1}, {kF32, 1}}, [&](const Tensors& t, int64_t) { return cast(flat(t[0]), flat(t[1])); }});
  check("normal_fill", {{{kBf16, 1}}, [&](const Tensors& t, int64_t rows) {
                          return normal_fill(flat(t[0]), 0.02f, 7, 1, 2 * kMany - rows);
                        }});
  check("column_sum", {{{kF32, 32, false}, {kBf16, 64}},
                       [](const Tensors& t, int64_t) { return column_sum(t[0].view({64}), t[1]); },
                       64,
                       2,
                       2,
                       false});
  for (const Gelu kind : {Gelu::tanh, Gelu::erf}) {
    check("gelu_forward", {{{kBf16, 1}, {kBf16, 1}},
                           [&](const Tensors& t, int64_t) { return gelu_forward(flat(t[0]), flat(t[1]), kind); }});
    check("gelu_backward", {{{kBf16, 1}, {kBf16, 1}, {kBf16, 1}}, [&](const Tensors& t, int64_t) {
                              return gelu_backward(flat(t[0]), flat(t[1]), flat(t[2]), kind);
                            }});
  }
}

TEST_CASE("attention: sequences beyond 2^31 elements") {
  const int64_t T = 16, H = 16, D = 64, wide = 3 * H * D;
  for (const Dtype dtype : {kF32, kBf16}) {
    const auto shape = [=](int64_t rows) { return AttentionShape{rows / T, T, H, H, D, 0.125f}; };
    check("attention_forward",
          {{{dtype, H * D}, {kF32, H}, {dtype, wide}, {kI32, 1, true, 0}},
           [=](const Tensors& t, int64_t rows) {
             return attention_forward({shape(rows), t[0], t[1].view({rows / T, H, T}), t[2], t[3].view({rows})});
           },
           wide,
           T,
           uint64_t(H)});
    check("attention_backward",
          {{{dtype, wide}, {dtype, H * D}, {dtype, H * D}, {kF32, H, true, 3}, {dtype, wide}, {kI32, 1, true, 0}},
           [=](const Tensors& t, int64_t rows) {
             return attention_backward(
                 {shape(rows), t[0], t[1], t[2], t[3].view({rows / T, H, T}), t[4], t[5].view({rows})});
           },
           wide,
           T,
           uint64_t(T * H / 4),
           false});
  }
}

TEST_SUITE_END();

} // namespace
} // namespace triax
