// What the back ends share to run a stream beside the issuing thread.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace triax {

/// Asks Linux to run the calling thread soon after it wakes, beside a compute team that never sleeps: the shortest time
/// slice (sched_setattr, Linux 6.12 or newer; older ones favour sleepers by themselves).
void prefer_latency();

/// Runs tasks in order on one thread. After one has thrown, those that follow are dropped until `drain`.
class Worker {
public:
  Worker() : thread_([this] { work(); }) {}
  ~Worker(); ///< returns when the queue is empty
  void push(std::function<void()> task);
  /// Returns when the queue is empty and idle; throws what a task threw.
  void drain();

private:
  void work();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false, stop_ = false;
  std::exception_ptr error_;
  std::thread thread_; // last: it starts when all else is there
};

/// Events as the step they were last recorded in: a wait is over once the event's generation is reached.
class Events {
public:
  void set(int32_t event, uint64_t generation);
  void wait(int32_t event, uint64_t generation);
  void break_all(); ///< a stream died: nobody may wait for it forever

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> done_;
  bool broken_ = false;
};

} // namespace triax
