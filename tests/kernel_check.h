// A kernel under test, issued to a real device: operands between guard zones, with gaps between rows where asked for,
// results beside the oracle's.
#pragma once
#include "kernels/emulated/emulation.h"
#include "tests/kernel_values.h"
#include <functional>
#include <set>

namespace triax::test {

/// Guards and gaps are filled with ones: NaN to whoever reads them as numbers.
constexpr uint8_t kCanary = 0xFF;
constexpr int64_t kGuardBytes = 512;

class KernelCheck {
public:
  explicit KernelCheck(int threads, const char* target = "cpu", bool aligned = false)
      : device_(Device::open(Target::parse(target), threads)), aligned_(aligned) {}
  /// The kinds of operation that were run; for all checks of the process.
  static std::set<const OpKind*>& kinds() {
    static std::set<const OpKind*> run;
    return run;
  }
  /// A test with many sizes leaves most of the large ones to the host.
  bool emulated() const { return device_->target().kind == Target::Kind::cuda; }

  /// An operand that holds `values`; unless all are aligned, every second one is so to no more than its elements.
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

  /// Runs the operation; what it does not write, around its operands and in them, must be as it was, but for all of
  /// `changed`, of which it may write a part.
  void run(const Op& op, const Tensor* changed = nullptr) {
    const bool library = op.kind->name == std::string("copy");
    kinds().insert(op.kind);
    if (emulated() && !library) REQUIRE((find_launch(*op.kind, Target::Kind::cuda) != find_launch(*op.kind, {})));
    device_->compute().run(op);
    for (Placed& p : placed_) {
      const std::vector<uint8_t> before = p.bytes;
      device_->read(p.raw, p.bytes.data());
      bool written = changed && changed->address == p.tensor.address;
      for (int i = 0; i < op.operand_count; ++i)
        written = written || (op.has(i) && op[i].address == p.tensor.address && op.operands[i].access != Access::read);
      std::vector<uint8_t> kept = before;
      if (written)
        each_element(p, [&](size_t at, int64_t size) { std::memcpy(&kept[at], &p.bytes[at], size_t(size)); });
      INFO(op.describe(), ": ", p.tensor.describe());
      CHECK((kept == p.bytes));
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
  /// All bytes of all operands, to compare two runs; of NaN no more than that it is one, for its bits are up to the
  /// compiler.
  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> all;
    for (const Placed& p : placed_) {
      const size_t begin = all.size();
      all.insert(all.end(), p.bytes.begin(), p.bytes.end());
      each_element(p, [&](size_t at, int64_t size) {
        if (std::isnan(get(p.tensor.dtype, &p.bytes[at]))) std::memset(&all[begin + at], kCanary, size_t(size));
      });
    }
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
    const int64_t before =
        kGuardBytes + (placed_.size() % 2 && t.dtype != Dtype::u8 && !aligned_ ? bytes_of(t.dtype) : 0);
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
    if (dtype == Dtype::u8) return u;
    if (dtype == Dtype::i32) return double(int32_t(u));
    return double(float_of_bits(dtype == Dtype::bf16 ? u << 16 : u));
  }

  std::unique_ptr<Device> device_;
  bool aligned_;
  std::vector<Placed> placed_;
};

/// Runs `f` on teams of 1 and 2 threads, which must leave the same bits.
inline void on_both_teams(const std::function<void(KernelCheck&)>& f) {
  KernelCheck one(1), two(2);
  f(one);
  f(two);
  CHECK(one.bytes() == two.bytes());
}

/// Runs `f` on the emulated GPU: with the sanitizers, and with the race detector and the threads in another order,
/// which must leave the same bits; and once more in small blocks, where operands are not aligned.
inline void on_emulated_gpu(const std::function<void(KernelCheck&)>& f) {
  using emulation::Emulation;
  using emulation::Order;
  std::vector<uint8_t> bytes;
  const auto go = [&](const char* units, Order order, bool aligned) {
    CAPTURE(std::string(units));
    const Emulation emulation(units, order, 1);
    KernelCheck k(1, "sm_90a", aligned);
    f(k);
    return k.bytes();
  };
  CHECK(go("emulated", Order::forward, true) == go("races", Order::shuffled, true));
  CHECK(go("emulated", Order::shuffled, false) == go("races", Order::reverse, false));
  go("races_small", Order::shuffled, false);
}

/// In all of these ways. TRIAX_HOST_LEVEL asks for a level of the host, so for the host alone.
inline void ways(const std::function<void(KernelCheck&)>& f, bool host, bool gpu) {
  if (host) on_both_teams(f);
  if (gpu && !std::getenv("TRIAX_HOST_LEVEL")) on_emulated_gpu(f);
}
/// And so with every other implementation of what was run.
inline void three_ways(const std::function<void(KernelCheck&)>& f) {
  KernelCheck::kinds().clear();
  ways(f, true, true);
  for (const OpKind* kind : std::set(KernelCheck::kinds()))
    for (const std::string& name : implementations(*kind)) {
      if (name == kReference) continue;
      CAPTURE(name);
      const auto there = [&](Target::Kind target) { return find_launch(*kind, target, name) != nullptr; };
      const ImplementationScope scope(*kind, name);
      ways(f, there(Target::Kind::cpu), [&] {
        const emulation::Emulation emulation("emulated");
        return there(Target::Kind::cuda);
      }());
    }
}

} // namespace triax::test
