// The host as a device. The compute stream is the issuing thread itself: it alone enters the OpenMP team (a second
// thread that does halves the rate of every product). Every other stream is a plain thread that runs its own queue in
// order.
#include "kernels/device.h"
#include "kernels/host_memory.h"
#include "kernels/worker.h"
#include <atomic>
#include <omp.h>
#include <utility>

namespace triax {
namespace {

class HostBackend final : public Backend {
public:
  explicit HostBackend(int threads) : threads_(threads) { set_compute_team(threads); }

  uint64_t allocate(Space, int64_t bytes) override { return map_host_memory(bytes); }
  void deallocate(Space, uint64_t address, int64_t bytes) override { unmap_host_memory(address, bytes); }
  int64_t available(Space) const override { return available_host_memory(); }

  void launch(StreamId stream, LaunchFn launch, const Op& op, const Tensor& scratch) override {
    const LaunchContext context{nullptr, stream == StreamId::compute ? threads_ : 1, scratch};
    if (stream == StreamId::compute) return launch(op, context);
    push(stream, [launch, op, context] { launch(op, context); });
  }
  void record(StreamId stream, int32_t event) override {
    if (stream == StreamId::compute) return events_.set(event, generation_);
    push(stream, [this, event, generation = generation_] { events_.set(event, generation); });
  }
  void wait(StreamId stream, int32_t event) override {
    if (stream != StreamId::compute)
      return push(stream, [this, event, generation = generation_] { events_.wait(event, generation); });
    events_.wait(event, generation_);
    if (failed_) synchronize();
  }
  void fence() override {
    synchronize();
    ++generation_;
  }
  void synchronize() override {
    for (auto& worker : workers_)
      if (worker) worker->drain();
  }
  void copy(uint64_t to, uint64_t from, int64_t bytes) override {
    if (bytes) std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size_t(bytes));
  }

private:
  void push(StreamId stream, std::function<void()> task) {
    auto& worker = workers_[size_t(stream)];
    if (!worker) worker = std::make_unique<Worker>();
    worker->push([this, task = std::move(task)] {
      try {
        task();
      } catch (...) {
        failed_ = true;
        events_.break_all();
        throw;
      }
    });
  }
  int threads_;
  uint64_t generation_ = 1;
  std::atomic<bool> failed_ = false;
  Events events_;
  std::array<std::unique_ptr<Worker>, kStreams> workers_; // last: they end first
};

} // namespace

void set_compute_team(int threads) { omp_set_num_threads(threads); }

std::unique_ptr<Backend> make_host_backend(int threads) { return std::make_unique<HostBackend>(threads); }

} // namespace triax
