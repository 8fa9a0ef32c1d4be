#include "kernels/matmul_onednn.h"
#include <chrono>
#include <memory>
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

namespace triax {
namespace {

using Descriptor = dnnl::memory::desc;
using Product = dnnl::matmul::primitive_desc;

/// How oneDNN is asked; see choose_routine.
enum class Routine : int32_t {
  plain,  ///< its first choice for row-major operands: blocks of b are packed on the fly, by each thread for itself
  packed, ///< b is reordered into the layout that oneDNN likes best, in scratch, then multiplied
  gemm,   ///< the classical blocked product
};

/// All that a product depends on but the addresses.
struct Problem {
  int64_t m, n, k, a_pitch, b_pitch, c_pitch; ///< pitches: elements from row to row, as the operands lie in memory
  int64_t transpose_a, transpose_b, bias, accumulate, threads;
  Dtype dtype, result;
  bool operator==(const Problem&) const = default;
};

struct ProblemHash {
  size_t operator()(const Problem& p) const {
    uint64_t hash = uint64_t(p.dtype) * 16 + uint64_t(p.result);
    for (const int64_t value : {p.m, p.n, p.k, p.a_pitch, p.b_pitch, p.c_pitch, p.transpose_a, p.transpose_b, p.bias,
                                p.accumulate, p.threads})
      hash = (hash ^ uint64_t(value)) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
    return hash;
  }
};

/// The fastest routine, from measurements on AVX-512 with bf16 (one and two threads; m 512 to 4096, model width 512,
/// MLP widths 1408 to 2816, vocabulary 50304), in per cent of the rate of a square product:
///   dw += dy^T x    gemm 83-103; plain 70-95: it transposes and packs both operands block by block. A transposed copy
///                   of dy first gains up to 8 in bf16, less than the copy costs.
///   f32 dx = dy w   gemm 93-104; packed 95-100; plain 86-97.
///   bf16 dx         packed 93-103; plain 88-107, slower where two threads each pack; gemm 90-98, and a copy of dx in
///                   f32 as scratch.
///   y = x w^T       from 2048 rows on packed 91-101, plain 90-102, slower on two threads; below, plain 90-107, packed
///                   80-102, since packing transposes. gemm 98-101 for long rows of y, but 73 where two threads must
///                   share k.
///   the head        b is too large to copy for what is gained: plain 92-96 for y; gemm 83-102 for dx, plain 85-92.
/// inner_product never won: its forward is gemm or packed, its gradients take blocked operands (43-100) or are gemm.
/// A transposed result (c^T = b^T a^T) is left to the reference code by oneDNN.
Routine choose_routine(const Problem& p) {
  constexpr int64_t kPackRows = 128, kPackRowsTransposed = 2048; // fewer rows of a do not pay for packing b
  constexpr int64_t kPackBytes = int64_t(32) << 20;              // of b
  const bool large = p.n * p.k * bytes_of(p.dtype) > kPackBytes;
  if (p.transpose_a) return Routine::gemm;
  if (p.n == 1 && p.c_pitch > 1) return Routine::gemm; // oneDNN 3.7 else writes the column as if it had no gaps
  if (p.m < (p.transpose_b ? kPackRowsTransposed : kPackRows)) return Routine::plain;
  if (!p.transpose_b && (p.dtype == Dtype::f32 || large)) return Routine::gemm;
  return large ? Routine::plain : Routine::packed;
}

dnnl::memory::data_type type_of(Dtype dtype) {
  return dtype == Dtype::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

Descriptor matrix(int64_t rows, int64_t columns, Dtype dtype, int64_t pitch, bool transposed) {
  return {{rows, columns}, type_of(dtype), transposed ? dnnl::memory::dims{1, pitch} : dnnl::memory::dims{pitch, 1}};
}

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

/// oneDNN's first implementation, or its classical one. What differs between its APIs of 2.x and 3.x stands here.
Product find_product(const Descriptor& a, const Descriptor& b, const Descriptor* bias, const Descriptor& c,
                     const dnnl::primitive_attr& attributes, bool gemm) {
#if DNNL_VERSION_MAJOR >= 3
  Product product = bias ? Product(engine(), a, b, *bias, c, attributes) : Product(engine(), a, b, c, attributes);
#else
  const auto operation = bias ? dnnl::matmul::desc(a, b, *bias, c) : dnnl::matmul::desc(a, b, c);
  Product product(operation, attributes, engine()); // next_impl reads the operation
#endif
  while (gemm && std::string(product.impl_info_str()).find("gemm:jit") == std::string::npos)
    if (!product.next_impl()) return find_product(a, b, bias, c, attributes, false); // none on this CPU
  return product;
}

Product make_product(const Problem& p, Routine routine) {
  const Descriptor a = matrix(p.m, p.k, p.dtype, p.a_pitch, p.transpose_a);
  const Descriptor b = routine == Routine::packed
                           ? Descriptor({p.k, p.n}, type_of(p.dtype), dnnl::memory::format_tag::any)
                           : matrix(p.k, p.n, p.dtype, p.b_pitch, p.transpose_b);
  const Descriptor c = matrix(p.m, p.n, p.result, p.c_pitch, false), bias = matrix(1, p.n, p.dtype, p.n, false);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  return find_product(a, b, p.bias ? &bias : nullptr, c, attributes, routine == Routine::gemm);
}

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// A product ready to run. Its memory objects are given new addresses at each launch, so that a launch allocates
/// nothing of its own.
class Multiplication {
public:
  explicit Multiplication(const Problem& p) : Multiplication(p, choose_routine(p)) {}
  Multiplication(const Problem& p, Routine routine)
      : product_(make_product(p, routine)), given_b_(matrix(p.k, p.n, p.dtype, p.b_pitch, p.transpose_b)) {
    if (product_.weights_desc() != given_b_) packed_bytes_ = aligned(int64_t(product_.weights_desc().get_size()));
    scratch_ = packed_bytes_ + aligned(int64_t(product_.scratchpad_desc().get_size()));
  }
  int64_t scratch() const { return scratch_; }

  void run(const void* a, const void* b, const void* bias, void* c, void* scratch) {
    if (arguments_.empty()) prepare(bias != nullptr);
    char* const packed = static_cast<char*>(scratch);
    if (packed_bytes_) {
      set(pack_arguments_, DNNL_ARG_FROM, b);
      set(pack_arguments_, DNNL_ARG_TO, packed);
      pack_.execute(stream_, pack_arguments_);
    }
    set(arguments_, DNNL_ARG_SRC, a);
    set(arguments_, DNNL_ARG_WEIGHTS, packed_bytes_ ? packed : b);
    set(arguments_, DNNL_ARG_DST, c);
    set(arguments_, DNNL_ARG_SCRATCHPAD, packed + packed_bytes_);
    if (bias) set(arguments_, DNNL_ARG_BIAS, bias);
    multiply_.execute(stream_, arguments_);
    stream_.wait();
  }

private:
  using Arguments = std::unordered_map<int, dnnl::memory>;
  static dnnl::memory unplaced(const Descriptor& descriptor) { return {descriptor, engine(), DNNL_MEMORY_NONE}; }
  static void set(Arguments& arguments, int which, const void* address) {
    arguments.at(which).set_data_handle(const_cast<void*>(address));
  }
  void prepare(bool bias) {
    stream_ = dnnl::stream(engine());
    multiply_ = dnnl::matmul(product_);
    arguments_ = {{DNNL_ARG_SRC, unplaced(product_.src_desc())},
                  {DNNL_ARG_WEIGHTS, unplaced(product_.weights_desc())},
                  {DNNL_ARG_DST, unplaced(product_.dst_desc())},
                  {DNNL_ARG_SCRATCHPAD, unplaced(product_.scratchpad_desc())}};
    if (bias) arguments_.emplace(DNNL_ARG_BIAS, unplaced(product_.bias_desc()));
    if (packed_bytes_) {
      pack_arguments_ = {{DNNL_ARG_FROM, unplaced(given_b_)}, {DNNL_ARG_TO, unplaced(product_.weights_desc())}};
      pack_ = dnnl::reorder(pack_arguments_.at(DNNL_ARG_FROM), pack_arguments_.at(DNNL_ARG_TO));
    }
  }

  Product product_;
  Descriptor given_b_;
  int64_t packed_bytes_ = 0, scratch_ = 0;
  dnnl::stream stream_;
  dnnl::matmul multiply_;
  dnnl::reorder pack_;
  Arguments arguments_, pack_arguments_;
};

/// Per thread that issues, since a Multiplication holds the addresses of the launch in progress.
Multiplication& multiplication_of(const Problem& p) {
  static thread_local std::unordered_map<Problem, Multiplication, ProblemHash> ready;
  const auto at = ready.find(p);
  if (at != ready.end()) return at->second;
  try {
    return ready.emplace(p, Multiplication(p)).first->second;
  } catch (const dnnl::error& error) {
    fail(concat("oneDNN has no product of ", name_of(p.dtype), " matrices [", p.m, ", ", p.k, "] and [", p.k, ", ", p.n,
                "]: ", error.what()));
  }
}

/// oneDNN sizes its work by the team of the calling thread.
class Team {
public:
  explicit Team(int threads) : before_(omp_get_max_threads()) { set(threads); }
  ~Team() { set(before_); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

private:
  static void set(int threads) {
    if (threads != omp_get_max_threads()) omp_set_num_threads(threads);
  }
  int before_;
};

Problem problem_of(const Op& op, int threads) {
  const auto attributes = op.get<MatmulAttributes>();
  const auto [m, n, k] = matmul_extent(op);
  const auto pitch = [](const Tensor& t) { return t.dim[0] == 1 ? t.dim[1] : t.stride[0]; };
  return {m,
          n,
          k,
          pitch(op[1]),
          pitch(op[2]),
          pitch(op[0]),
          attributes.transpose_a,
          attributes.transpose_b,
          op.has(3),
          attributes.accumulate,
          threads,
          op[1].dtype,
          op[0].dtype};
}

bool is_converted(const Problem& p) { return p.dtype == Dtype::bf16 && !cpu_has_bf16(); }

/// The same product with dense f32 operands.
Problem converted(const Problem& p) {
  Problem f32 = p;
  f32.dtype = f32.result = Dtype::f32;
  f32.a_pitch = p.transpose_a ? p.m : p.k;
  f32.b_pitch = p.transpose_b ? p.k : p.n;
  if (p.result == Dtype::bf16) f32.c_pitch = p.n;
  return f32;
}

/// Where the f32 copies lie in the scratch; the product's own follows them.
struct Copies {
  int64_t a, b, bias, c, end;
  explicit Copies(const Problem& p)
      : a(0), b(a + aligned(p.m * p.k * 4)), bias(b + aligned(p.k * p.n * 4)),
        c(bias + (p.bias ? aligned(p.n * 4) : 0)), end(c + (p.result == Dtype::bf16 ? aligned(p.m * p.n * 4) : 0)) {}
};

void widen(float* to, const Tensor& from) {
  const int64_t rows = from.rank == 1 ? 1 : from.dim[0], columns = from.rank == 1 ? from.dim[0] : from.dim[1];
  const uint16_t* const source = from.data<const uint16_t>();
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < columns; ++i) {
      const uint32_t bits = uint32_t(source[row * from.stride[0] + i]) << 16;
      std::memcpy(to + row * columns + i, &bits, sizeof bits);
    }
}

/// To nearest even; NaN stays NaN.
void narrow(const Tensor& to, const float* from) {
  uint16_t* const target = to.data<uint16_t>();
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < to.dim[0]; ++row)
    for (int64_t i = 0; i < to.dim[1]; ++i) {
      uint32_t bits;
      std::memcpy(&bits, from + row * to.dim[1] + i, sizeof bits);
      const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
      target[row * to.stride[0] + i] = nan ? uint16_t(0x7fff) : uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
}

void launch_converted(const Op& op, const Problem& p, char* scratch, Multiplication& product) {
  const Copies at(p);
  const auto copy = [&](int64_t offset) { return reinterpret_cast<float*>(scratch + offset); };
  const bool narrow_result = p.result == Dtype::bf16;
  widen(copy(at.a), op[1]);
  widen(copy(at.b), op[2]);
  if (p.bias) widen(copy(at.bias), op[3]);
  if (narrow_result && p.accumulate) widen(copy(at.c), op[0]);
  float* const c = narrow_result ? copy(at.c) : op[0].data<float>();
  product.run(copy(at.a), copy(at.b), p.bias ? copy(at.bias) : nullptr, c, scratch + at.end);
  if (narrow_result) narrow(op[0], c);
}

void launch_matmul(const Op& op, const LaunchContext& context) {
  const Problem p = problem_of(op, context.threads);
  if (p.m == 0 || p.n == 0 || p.k == 0) return;
  const Team team(context.threads);
  const bool convert = is_converted(p);
  Multiplication& product = multiplication_of(convert ? converted(p) : p);
  const int64_t needed = (convert ? Copies(p).end : 0) + product.scratch();
  ENSURE(needed == 0 || context.scratch.bytes() >= needed, op.describe(), " was described for another team than of ",
         context.threads, " threads");
  char* const scratch = context.scratch.data<char>();
  if (convert) return launch_converted(op, p, scratch, product);
  product.run(op[1].data<void>(), op[2].data<void>(), p.bias ? op[3].data<void>() : nullptr, op[0].data<void>(),
              scratch);
}

const LaunchRegistration kLaunch("host", "matmul", launch_matmul);

} // namespace

int64_t matmul_host_scratch(const Op& op) {
  const Problem p = problem_of(op, omp_get_max_threads());
  if (p.m == 0 || p.n == 0 || p.k == 0) return 0;
  return is_converted(p) ? Copies(p).end + multiplication_of(converted(p)).scratch() : multiplication_of(p).scratch();
}

bool cpu_has_bf16() {
#if defined(__x86_64__)
  static const bool has = [] {
    const int isa = int(dnnl::get_effective_cpu_isa()), bf16 = int(dnnl::cpu_isa::avx512_core_bf16);
    return (isa & bf16) == bf16;
  }();
#else
  static const bool has = [] {
    try {
      const Problem p{64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 1, Dtype::bf16, Dtype::bf16};
      return std::string(make_product(p, Routine::plain).impl_info_str()).find("ref") == std::string::npos;
    } catch (const dnnl::error&) {
      return false;
    }
  }();
#endif
  return has;
}

double measure_matrix_rate(Dtype dtype, int threads) {
  constexpr int64_t kSize = 1536;
  constexpr int kRepeats = 5;
  const Team team(threads);
  const Problem p{kSize, kSize, kSize, kSize, kSize, kSize, 0, 0, 0, 0, threads, dtype, dtype};
  DEMAND(dtype == Dtype::f32 || cpu_has_bf16(), "this CPU multiplies no bf16 matrices; its rate is that of f32");
  using Clock = std::chrono::steady_clock;
  double best = 1e30;
  for (const Routine routine : {Routine::packed, Routine::gemm}) {
    Multiplication product(p, routine);
    const size_t matrix_bytes = size_t(kSize * kSize * bytes_of(dtype));
    const std::unique_ptr<char[]> memory(new char[3 * matrix_bytes + size_t(product.scratch()) + 64]()); // zeroed
    void* at = memory.get();
    size_t space = 3 * matrix_bytes + size_t(product.scratch()) + 64;
    char* const a = static_cast<char*>(std::align(64, space - 64, at, space));
    for (int i = 0; i <= kRepeats; ++i) {
      const auto start = Clock::now();
      product.run(a, a + matrix_bytes, nullptr, a + 2 * matrix_bytes, a + 3 * matrix_bytes);
      if (i) best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
  return 2.0 * kSize * kSize * kSize / best;
}

} // namespace triax
