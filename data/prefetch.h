// Batches made ahead of time by a background thread.
#pragma once
#include "data/dataset.h"
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace triax {

/// Batches come out of `take` in the order of `ask`. For one calling thread.
class Prefetcher {
public:
  /// `make`: (first_sample, count) to batch, called on the background thread only.
  explicit Prefetcher(std::function<Batch(int64_t first_sample, int64_t count)> make);
  explicit Prefetcher(const Dataset& dataset);
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  /// Finishes the batch in the making, drops the others.
  ~Prefetcher();

  /// Orders a batch; returns at once. Everything ordered and not taken is kept in memory: order two or so ahead.
  void ask(int64_t first_sample, int64_t count);
  /// Waits for the oldest batch ordered. Throws what making it threw. Refuses when nothing was ordered.
  Batch take();
  int64_t pending() const; ///< ordered and not taken

private:
  struct Job {
    int64_t first_sample, count;
    bool done = false;
    Batch batch;
    std::exception_ptr error;
  };
  void work();

  std::function<Batch(int64_t, int64_t)> make_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_; ///< oldest first; references stay valid while others are added at the end
  bool stop_ = false;
  std::thread thread_;
};

} // namespace triax
