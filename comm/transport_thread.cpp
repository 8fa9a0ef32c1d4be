#include "comm/transport_thread.h"
#include "kernels/check.h"
#include "kernels/worker.h"
#include <utility>

namespace triax {

Transport::Thread::~Thread() {
  run([this] {
    stop_ = true;
    return MpiApi::Request{};
  });
  thread_.join();
}

void Transport::Thread::run(const std::function<MpiApi::Request()>& start) {
  Task task{&start, nullptr, nullptr, {}, nullptr, nullptr, {}};
  run(task);
}

void Transport::Thread::run(const char* kind, const Group* group, const Origin& origin,
                            const std::function<MpiApi::Request()>& start) {
  Task task{&start, kind, group, origin, nullptr, nullptr, {}};
  run(task);
}

void Transport::Thread::run(Task& task) {
  auto done = task.done.get_future();
  {
    const std::lock_guard lock(mutex_);
    arrived_.push_back(&task);
  }
  changed_.notify_one();
  done.get();
}

void Transport::Thread::work() {
  prefer_latency();
  constexpr auto kShortest = std::chrono::microseconds(10), kLongest = std::chrono::microseconds(200);
  constexpr int kYields = 8;       // before it sleeps, which would take no core from the kernels
  constexpr unsigned kRounds = 64; // without a look at the clock, where it does not sleep
  auto sleep = kShortest;
  int idle_rounds = 0;
  for (unsigned round = 0; !stop_; ++round) {
    bool progress = false;
    const bool sleeps = idle_rounds >= kYields;
    for (Task* task : take(sleeps ? sleep : std::chrono::microseconds(0))) {
      progress = true;
      begin(task);
    }
    progress |= test_all();
    if ((sleeps || under_way_.empty() || round % kRounds == 0) && waits_ && Waits::Clock::now() >= next_look_) look();
    if (idle_rounds >= kYields) sleep = std::min(sleep * 2, kLongest);
    idle_rounds = progress ? 0 : idle_rounds + 1;
    if (progress) sleep = kShortest;
    if (!progress && idle_rounds < kYields) std::this_thread::yield();
  }
}

/// What has arrived; waits for it as long as told, and until the next look where nothing is under way.
std::vector<Transport::Thread::Task*> Transport::Thread::take(std::chrono::microseconds patience) {
  std::unique_lock lock(mutex_);
  const auto some = [this] { return !arrived_.empty(); };
  if (!under_way_.empty()) {
    if (patience.count() > 0) changed_.wait_for(lock, patience, some);
  } else if (waits_) {
    changed_.wait_for(lock, Waits::kEvery, some);
  } else {
    changed_.wait(lock, some);
  }
  return std::exchange(arrived_, {});
}

void Transport::Thread::begin(Task* task) {
  try {
    if (task->kind) {
      if (!failure_.empty()) fail(failure_);
      task->place = waits_->begin(task->kind, task->group, task->origin);
    }
    task->request = (*task->start)();
    if (task->request) return under_way_.push_back(task);
    task->done.set_value();
  } catch (...) {
    task->done.set_exception(std::current_exception());
  }
}

/// Ends what is done. Was there any?
bool Transport::Thread::test_all() {
  if (!failure_.empty()) return false;
  bool any = false;
  for (size_t i = 0; i < under_way_.size();) {
    Task* task = under_way_[i];
    if (!mpi_->test(&task->request)) {
      ++i;
      continue;
    }
    any = true;
    if (task->place) task->place->open = false; // before its caller, whose data it refers to, goes on
    task->done.set_value();
    under_way_.erase(under_way_.begin() + std::ptrdiff_t(i));
  }
  return any;
}

void Transport::Thread::look() {
  next_look_ = Waits::Clock::now() + Waits::kEvery;
  const std::string sentence = waits_->look(failure_.empty() ? timeout_.load() : std::chrono::seconds(0), long_work_);
  if (sentence.empty()) return;
  failure_ = sentence; // the process will end; until then this thread answers others
  waits_->forget_origins();
  for (Task* task : std::exchange(under_way_, {})) task->done.set_exception(std::make_exception_ptr(Error(failure_)));
}

void Transport::Thread::end_waits() {
  waits_->finish();
  waits_.reset();
}

} // namespace triax
