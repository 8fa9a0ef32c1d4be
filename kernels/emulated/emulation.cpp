// The emulated device.
#include "kernels/emulated/emulation.h"
#include "kernels/host_memory.h"
#include <cstring>
#include <map>
#if defined(TRIAX_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#endif

namespace triax::emulation {
namespace {

/// While it lives, the address sanitizer lets nobody touch the device's memory but the operands.
class OperandsAlone {
public:
  OperandsAlone([[maybe_unused]] const std::map<uint64_t, size_t>& memory, [[maybe_unused]] const Op& op,
                [[maybe_unused]] const Tensor& scratch)
      : memory_(memory) {
#if defined(TRIAX_ADDRESS_SANITIZER)
    for (const auto& [at, bytes] : memory_) __asan_poison_memory_region(reinterpret_cast<void*>(at), bytes);
    for (int i = 0; i < op.operand_count; ++i)
      if (op.has(i)) open(op[i]);
    if (!scratch.empty()) open(scratch);
#endif
  }
  ~OperandsAlone() {
#if defined(TRIAX_ADDRESS_SANITIZER)
    for (const auto& [at, bytes] : memory_) __asan_unpoison_memory_region(reinterpret_cast<void*>(at), bytes);
#endif
  }
  OperandsAlone(const OperandsAlone&) = delete;
  OperandsAlone& operator=(const OperandsAlone&) = delete;

private:
#if defined(TRIAX_ADDRESS_SANITIZER)
  void open(const Tensor& t) const {
    const auto after = memory_.upper_bound(t.address);
    if (after == memory_.begin() || t.address >= std::prev(after)->first + std::prev(after)->second) return; // not ours
    const int64_t size = bytes_of(t.dtype);
    const auto range = [&](int64_t first, int64_t count) {
      __asan_unpoison_memory_region(t.data<char>() + first * size, size_t(count * size));
    };
    if (t.dense()) return range(0, t.size());
    const size_t last = size_t(t.rank) - 1;
    const bool whole = t.stride[last] == 1; // rows without gaps
    for (int64_t n = 0, step = whole ? t.dim[last] : 1; n < t.size(); n += step) {
      range(t.offset(n), step);
    }
  }
#endif
  [[maybe_unused]] const std::map<uint64_t, size_t>& memory_;
};

class EmulatedBackend final : public Backend {
public:
  uint64_t allocate(Space, int64_t bytes) override {
    void* at = std::aligned_alloc(size_t(kAlignment), size_t(aligned(bytes)));
    DEMAND(at, "emulation: not enough memory for ", bytes, " bytes");
    memory_[reinterpret_cast<uint64_t>(at)] = size_t(bytes);
    return reinterpret_cast<uint64_t>(std::memset(at, 0, size_t(bytes)));
  }
  void deallocate(Space, uint64_t address, int64_t) override {
    memory_.erase(address);
    std::free(reinterpret_cast<void*>(address));
  }
  int64_t available(Space) const override { return available_host_memory(); }

  void launch(StreamId, LaunchFn launch, const Op& op, const Tensor& scratch) override {
    const Declared declared(op, scratch);
    const OperandsAlone others_are_closed(memory_, op, scratch);
    launch(op, {nullptr, 1, scratch});
  }
  void record(StreamId, int32_t) override {}
  void wait(StreamId, int32_t) override {}
  void fence() override {}
  void synchronize() override {}
  void copy(uint64_t to, uint64_t from, int64_t bytes) override {
    if (bytes) std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size_t(bytes));
  }

private:
  std::map<uint64_t, size_t> memory_; ///< bytes by address
};

std::unique_ptr<Backend> open_emulated(const Target&) { return std::make_unique<EmulatedBackend>(); }

} // namespace

Emulation::Emulation(const char* units, Order order, uint64_t seed) : before_(make_cuda_backend) {
  make_cuda_backend = open_emulated;
  run_on_gpu(units);
  schedule = {.order = order, .seed = seed};
}

Emulation::~Emulation() {
  make_cuda_backend = before_;
  run_on_gpu("cuda");
  schedule = {};
}

} // namespace triax::emulation
