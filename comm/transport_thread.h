// The one thread of a process that calls MPI.
#pragma once
#include "comm/mpi_api.h"
#include "comm/waits.h"
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

namespace triax {

/// What callers start is polled together until it is done, so that no group waits for another; each caller waits for
/// its own. It also answers ranks that ask where this one is.
class Transport::Thread {
public:
  explicit Thread(const MpiApi* mpi) : mpi_(mpi), thread_([this] { work(); }) {}
  ~Thread();
  /// Blocks until what `start` does, or starts, is done; `start` may return null: then it is done. Throws where it
  /// takes longer than the time-out, or something has before.
  void run(const char* kind, const Group* group, const Origin& origin, const std::function<MpiApi::Request()>& start);
  /// The same for what waits for no other rank, or cannot be polled.
  void run(const std::function<MpiApi::Request()>& start);

  void set_timeout(std::chrono::seconds timeout) { timeout_ = timeout; }
  void set_long_work(const char* what) { long_work_ = what; }
  // Called by the thread itself, inside `run`.
  void begin_waits(int rank, int size) { waits_.emplace(mpi_, rank, size); }
  void end_waits();

private:
  struct Task {
    const std::function<MpiApi::Request()>* start;
    const char* kind; ///< null: not waited for by others
    const Group* group;
    Origin origin;
    Waits::Place* place;
    MpiApi::Request request;
    std::promise<void> done;
  };
  void run(Task& task);
  void work();
  std::vector<Task*> take(std::chrono::microseconds patience);
  void begin(Task* task);
  bool test_all();
  void look();

  const MpiApi* mpi_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Task*> arrived_;
  std::atomic<std::chrono::seconds> timeout_ = std::chrono::seconds(600);
  std::atomic<const char*> long_work_ = nullptr;
  // Of the thread alone.
  std::vector<Task*> under_way_;
  std::optional<Waits> waits_;
  Waits::Clock::time_point next_look_{};
  std::string failure_; ///< what took too long; empty: nothing
  bool stop_ = false;
  std::thread thread_; // last: it starts when all else is there
};

} // namespace triax
