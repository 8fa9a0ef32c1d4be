#include "kernels/worker.h"
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace triax {

void prefer_latency() {
  struct { // sched_attr of linux/sched/types.h, whose header does not go together with <sched.h>
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  attributes.runtime = 100'000; // ns, the least that Linux takes
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Worker::push(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void Worker::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Worker::work() {
  prefer_latency();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const auto task = std::move(tasks_.front());
    tasks_.pop_front();
    busy_ = true;
    lock.unlock();
    try {
      if (!error_) task();
    } catch (...) {
      error_ = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

void Events::set(int32_t event, uint64_t generation) {
  {
    const std::lock_guard lock(mutex_);
    if (size_t(event) >= done_.size()) done_.resize(size_t(event) + 1, 0);
    done_[size_t(event)] = generation;
  }
  changed_.notify_all();
}

void Events::wait(int32_t event, uint64_t generation) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return broken_ || (size_t(event) < done_.size() && done_[size_t(event)] >= generation); });
}

void Events::break_all() {
  {
    const std::lock_guard lock(mutex_);
    broken_ = true;
  }
  changed_.notify_all();
}

} // namespace triax
