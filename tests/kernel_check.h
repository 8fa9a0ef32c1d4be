// A kernel under test, issued to a real device: operands between guard zones, with gaps between rows where asked for,
// results beside the oracle's.
#pragma once
#include "kernels/device.h"
#include "tests/oracle.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <functional>

namespace triax::test {

using oracle::Ints;
using oracle::Vec;

/// Guards and gaps are filled with ones: NaN to whoever reads them as numbers.
constexpr uint8_t kCanary = 0xFF;
constexpr int64_t kGuardBytes = 512;

inline uint32_t bits_of_float(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}
inline float float_of_bits(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

/// The number as the dtype holds it, rounded to nearest even.
inline double rounded(Dtype dtype, double value) {
  const uint32_t u = bits_of_float(float(value));
  if (dtype == Dtype::f32 || std::isnan(value)) return double(float(value));
  return double(float_of_bits((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u));
}
inline Vec rounded(Dtype dtype, Vec values) {
  for (double& v : values) v = rounded(dtype, v);
  return values;
}
/// Uniform in [-scale, scale], as the dtype holds it.
inline Vec numbers(Dtype dtype, int64_t count, uint64_t seed, double scale = 1) {
  return rounded(dtype, oracle::random(size_t(count), seed, scale));
}

class KernelCheck {
public:
  explicit KernelCheck(int threads) : device_(Device::open(Target{}, threads)) {}

  /// An operand that holds `values`; every second one is aligned to no more than its elements are.
  Tensor in(Dtype dtype, std::initializer_list<int64_t> shape, const Vec& values) {
    Tensor t = place(Tensor::dense(0, Space::device, dtype, shape));
    fill(t, values);
    return t;
  }
  Tensor in(std::initializer_list<int64_t> shape, const Ints& values) {
    return in(Dtype::i32, shape, Vec(values.begin(), values.end()));
  }
  /// Rows of `columns` elements, `gap` others behind each.
  Tensor in_rows(Dtype dtype, int64_t rows, int64_t columns, int64_t gap, const Vec& values) {
    Tensor t = place(Tensor::dense(0, Space::device, dtype, {rows, columns + gap}).slice(1, 0, columns));
    fill(t, values);
    return t;
  }
  /// An operand that holds NaN, to be written.
  Tensor out(Dtype dtype, std::initializer_list<int64_t> shape) {
    return place(Tensor::dense(0, Space::device, dtype, shape));
  }
  template <class T> Tensor bytes(const T& value) {
    Tensor t = place(Tensor::dense(0, Space::device, Dtype::u8, {int64_t(sizeof(T))}));
    Placed& p = placed_.back();
    std::memcpy(p.bytes.data() + (t.address - p.raw.address), &value, sizeof(T));
    device_->write(p.raw, p.bytes.data());
    return t;
  }

  /// Runs the operation; what it does not write, around its operands and in them, must be as it was.
  void run(const Op& op) {
    device_->compute().run(op);
    for (Placed& p : placed_) {
      const std::vector<uint8_t> before = p.bytes;
      device_->read(p.raw, p.bytes.data());
      bool written = false;
      for (int i = 0; i < op.operand_count; ++i)
        written = written || (op.has(i) && op[i].address == p.tensor.address && op.operands[i].access != Access::read);
      std::vector<bool> may(p.bytes.size(), false);
      if (written) each_element(p, [&](size_t at, int64_t size) { std::fill_n(may.begin() + long(at), size, true); });
      size_t changed = 0;
      for (size_t i = 0; i < before.size(); ++i) changed += !may[i] && before[i] != p.bytes[i];
      INFO(op.describe(), ": ", p.tensor.describe());
      CHECK(changed == 0);
    }
  }

  Vec read(const Tensor& t) {
    for (Placed& p : placed_) {
      if (p.tensor.address != t.address || p.tensor.size() != t.size()) continue;
      Vec values;
      each_element(p, [&](size_t at, int64_t) { values.push_back(get(t.dtype, p.bytes.data() + at)); });
      return values;
    }
    FAIL("this tensor was not placed");
    return {};
  }
  /// All bytes of all operands, to compare two runs.
  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> all;
    for (const Placed& p : placed_) all.insert(all.end(), p.bytes.begin(), p.bytes.end());
    return all;
  }

private:
  struct Placed {
    Tensor raw, tensor;
    std::vector<uint8_t> bytes; ///< of raw, as last seen
  };

  Tensor place(Tensor t) {
    const int64_t rows = t.rank == 2 && t.dim[1] > 0 ? t.dim[0] : 1;
    const int64_t size = (t.rank == 2 && t.dim[1] > 0 ? rows * t.stride[0] : t.size()) * bytes_of(t.dtype);
    const int64_t before = kGuardBytes + (placed_.size() % 2 && t.dtype != Dtype::u8 ? bytes_of(t.dtype) : 0);
    const int64_t total = before + size + kGuardBytes;
    const Tensor raw = device_->persistent("operand", Purpose::activations, Dtype::u8, {total});
    t.address = raw.address + uint64_t(before);
    placed_.push_back({raw, t, std::vector<uint8_t>(size_t(total), kCanary)});
    device_->write(raw, placed_.back().bytes.data());
    return t;
  }
  void fill(const Tensor& t, const Vec& values) {
    Placed& p = placed_.back();
    REQUIRE(values.size() == size_t(t.size()));
    size_t n = 0;
    each_element(p, [&](size_t at, int64_t) { put(t.dtype, values[n++], p.bytes.data() + at); });
    device_->write(p.raw, p.bytes.data());
  }
  template <class F> static void each_element(const Placed& p, const F& f) {
    const Tensor& t = p.tensor;
    const int64_t size = bytes_of(t.dtype), begin = int64_t(t.address - p.raw.address);
    for (int64_t n = 0; n < t.size(); ++n) {
      int64_t at = 0, rest = n;
      for (int d = t.rank - 1; d >= 0; rest /= t.dim[d--]) at += rest % t.dim[d] * t.stride[d];
      f(size_t(begin + at * size), size);
    }
  }
  static void put(Dtype dtype, double value, uint8_t* to) {
    const uint32_t u = dtype == Dtype::i32    ? uint32_t(int32_t(value))
                       : dtype == Dtype::bf16 ? bits_of_float(float(rounded(dtype, value))) >> 16
                                              : bits_of_float(float(value));
    std::memcpy(to, &u, size_t(bytes_of(dtype)));
  }
  static double get(Dtype dtype, const uint8_t* from) {
    uint32_t u = 0;
    std::memcpy(&u, from, size_t(bytes_of(dtype)));
    if (dtype == Dtype::i32) return double(int32_t(u));
    return double(float_of_bits(dtype == Dtype::bf16 ? u << 16 : u));
  }

  std::unique_ptr<Device> device_;
  std::vector<Placed> placed_;
};

/// Runs `f` on teams of 1 and 2 threads, which must leave the same bits.
inline void on_both_teams(const std::function<void(KernelCheck&)>& f) {
  KernelCheck one(1), two(2);
  f(one);
  f(two);
  CHECK(one.bytes() == two.bytes());
}

/// Each element within its own rounding (bf16: half a unit in the last place, at most 2^-8) and f32's error on the
/// largest one. `inexact` widens both: how many roundings lie between the operands and the result.
inline void check_close(const char* name, const Vec& got, const Vec& want, Dtype dtype, double inexact = 1) {
  REQUIRE(got.size() == want.size());
  double largest = 0;
  for (double w : want) largest = std::isfinite(w) ? std::max(largest, std::abs(w)) : largest;
  const double relative = inexact * (dtype == Dtype::bf16 ? 0x1p-8 : 1e-5), absolute = inexact * 2e-6 * largest;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])
            ? std::isnan(got[i])
            : got[i] == want[i] || std::abs(got[i] - want[i]) <= relative * std::abs(want[i]) + absolute)
      continue;
    FAIL_CHECK(std::string(name), "[", i, "] of ", got.size(), " ", std::string(name_of(dtype)), " is ", got[i],
               ", expected ", want[i]);
    return;
  }
}

} // namespace triax::test
