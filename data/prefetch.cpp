#include "data/prefetch.h"
#include "kernels/check.h"
#include <algorithm>
#include <utility>

namespace triax {

Prefetcher::Prefetcher(std::function<Batch(int64_t, int64_t)> make)
    : make_(std::move(make)), thread_([this] { work(); }) {}

Prefetcher::Prefetcher(const Dataset& dataset)
    : Prefetcher([dataset](int64_t first, int64_t count) { return dataset.batch(first, count); }) {}

Prefetcher::~Prefetcher() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Prefetcher::ask(int64_t first_sample, int64_t count) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(Job{first_sample, count, false, {}, nullptr});
  }
  changed_.notify_all();
}

Batch Prefetcher::take() {
  std::unique_lock lock(mutex_);
  ENSURE(!jobs_.empty(), "a batch was taken that was not asked for");
  changed_.wait(lock, [&] { return jobs_.front().done; });
  Job job = std::move(jobs_.front());
  jobs_.pop_front();
  if (job.error) std::rethrow_exception(job.error);
  return std::move(job.batch);
}

int64_t Prefetcher::pending() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(jobs_.size());
}

void Prefetcher::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto open = [&] {
      return std::find_if(jobs_.begin(), jobs_.end(), [](const Job& job) { return !job.done; });
    };
    changed_.wait(lock, [&] { return stop_ || open() != jobs_.end(); });
    if (stop_) return;
    Job& job = *open(); // stays in place: only finished jobs leave the front
    lock.unlock();
    try {
      job.batch = make_(job.first_sample, job.count);
    } catch (...) {
      job.error = std::current_exception();
    }
    lock.lock();
    job.done = true;
    changed_.notify_all();
  }
}

} // namespace triax
