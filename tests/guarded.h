// Operands of a kernel under test: aligned as in an arena, with guard zones around them and gaps between their rows.
#pragma once
#include "kernels/op.h"
#include "tests/oracle.h"
#include <cstring>
#include <omp.h>

namespace triax::test {

constexpr size_t kGuard = 512;
constexpr unsigned char kGuardByte = 0xAB;

/// Aligned bytes between two guard zones.
class Guarded {
public:
  explicit Guarded(size_t bytes) : bytes_(bytes), memory_(bytes + 2 * kGuard + 64, kGuardByte) {}
  char* data() {
    const size_t at = reinterpret_cast<size_t>(memory_.data()) + kGuard;
    return reinterpret_cast<char*>((at + 63) / 64 * 64);
  }
  bool intact() {
    const auto* const first = reinterpret_cast<unsigned char*>(data());
    for (size_t i = 1; i <= kGuard; ++i)
      if (first[-ptrdiff_t(i)] != kGuardByte || first[bytes_ + i - 1] != kGuardByte) return false;
    return true;
  }

private:
  size_t bytes_;
  std::vector<unsigned char> memory_;
};

inline float as_stored(double value, Dtype dtype) {
  const float f = float(value);
  if (dtype == Dtype::f32) return f;
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  float rounded;
  std::memcpy(&rounded, &bits, 4);
  return rounded;
}

/// Rows of `pitch` elements in guarded memory; the gap behind each row must stay as it is.
class Matrix {
public:
  Matrix(Dtype dtype, int64_t rows, int64_t columns, int64_t gap, uint64_t seed, double scale = 1)
      : memory_(size_t(rows * (columns + gap) * bytes_of(dtype))),
        tensor_(
            Tensor::dense(uint64_t(memory_.data()), Space::device, dtype, {rows, columns + gap}).slice(1, 0, columns)) {
    value_ = oracle::random(size_t(rows * columns), seed, scale);
    for (double& v : value_) v = as_stored(v, dtype);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) put(r, c, float(value_[size_t(r * columns + c)]));
  }
  const Tensor& tensor() const { return tensor_; }
  const oracle::Vec& value() const { return value_; }
  oracle::Vec read() {
    oracle::Vec all;
    for (int64_t r = 0; r < tensor_.dim[0]; ++r)
      for (int64_t c = 0; c < tensor_.dim[1]; ++c) all.push_back(get(r, c));
    return all;
  }
  bool intact() {
    bool ok = memory_.intact();
    const int64_t size = bytes_of(tensor_.dtype);
    for (int64_t r = 0; r < tensor_.dim[0]; ++r)
      for (int64_t b = tensor_.dim[1] * size; b < tensor_.stride[0] * size; ++b)
        ok = ok && static_cast<unsigned char>(memory_.data()[r * tensor_.stride[0] * size + b]) == kGuardByte;
    return ok;
  }

private:
  char* at(int64_t r, int64_t c) { return memory_.data() + (r * tensor_.stride[0] + c) * bytes_of(tensor_.dtype); }
  void put(int64_t r, int64_t c, float v) {
    uint32_t bits;
    std::memcpy(&bits, &v, 4);
    if (tensor_.dtype == Dtype::bf16) bits >>= 16; // exact: the value is rounded already
    std::memcpy(at(r, c), &bits, size_t(bytes_of(tensor_.dtype)));
  }
  float get(int64_t r, int64_t c) {
    uint32_t bits = 0;
    std::memcpy(&bits, at(r, c), size_t(bytes_of(tensor_.dtype)));
    if (tensor_.dtype == Dtype::bf16) bits <<= 16;
    float v;
    std::memcpy(&v, &bits, 4);
    return v;
  }
  Guarded memory_;
  Tensor tensor_;
  oracle::Vec value_;
};

/// Runs the operation on a team of `threads`, with exactly the scratch that it asks for. Is what surrounds it intact?
inline bool run_guarded(const Op& op, int threads) {
  omp_set_num_threads(threads);
  const int64_t bytes = op.kind->describe(Target{}, op).scratch;
  Guarded scratch{size_t(bytes)};
  const Tensor part = Tensor::dense(uint64_t(scratch.data()), Space::device, Dtype::u8, {bytes});
  find_launch(*op.kind, Target::Kind::cpu)(op, LaunchContext{nullptr, threads, part});
  return scratch.intact();
}

} // namespace triax::test
