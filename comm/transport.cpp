#include "comm/transport.h"
#include "comm/mpi_api.h"
#include "kernels/check.h"
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <future>
#include <mutex>
#include <thread>
#include <unistd.h>

namespace triax {
namespace {

int env_int(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? std::atoi(value) : otherwise;
}

std::string binary_folder() {
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  ENSURE(n > 0, "the binary's own path cannot be read");
  const std::string full(path, size_t(n));
  return full.substr(0, full.rfind('/'));
}

const MpiApi* load_mpi() {
  const std::string path = binary_folder() + "/libtriax_mpi.so";
  void* part = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL); // global: Open MPI loads components that need its symbols
  DEMAND(part, "several ranks were launched, but MPI's part does not load: ", dlerror(),
         "; build triax where Open MPI is installed (scripts/setup), or launch one rank");
  const auto entry = reinterpret_cast<const MpiApi* (*)()>(dlsym(part, "triax_mpi_api"));
  ENSURE(entry, path, " has no triax_mpi_api");
  return entry();
}

/// Polls without taking a core from the kernels: yields at first, then sleeps for longer and longer.
class BackOff {
public:
  void pause() {
    if (++rounds_ < 64) return std::this_thread::yield();
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 2, std::chrono::microseconds(200));
  }

private:
  int rounds_ = 0;
  std::chrono::microseconds sleep_{10};
};

std::unique_ptr<Transport> joined;

} // namespace

Launch Launch::detect() {
  Launch launch;
  launch.launcher = "none";
  if (const int n = env_int("OMPI_COMM_WORLD_SIZE", 0); n > 0) return {n, true, "mpirun"};
  const int tasks = env_int("SLURM_NTASKS", env_int("SLURM_NPROCS", 0));
  const bool slurm_task = std::getenv("SLURM_PROCID") != nullptr;
  if (std::getenv("PMIX_RANK")) return {tasks, true, "srun"}; // 0 tasks: another PMIx launcher, which MPI understands
  const int pmi = env_int("PMI_SIZE", 1);
  DEMAND(!(slurm_task && tasks > 1), "Slurm announced ", tasks,
         " tasks, but no PMIx: each would train alone as rank 0 of 1; launch with "
         "`srun --mpi=pmix` or with `mpirun`");
  DEMAND(pmi == 1, "a launcher announced ", pmi,
         " ranks by PMI, which Open MPI's PMIx does not hear; launch with `mpirun` of Open MPI");
  return launch;
}

/// Runs MPI calls in the order in which they are asked for; each caller waits for its own.
class Transport::Thread {
public:
  Thread() : thread_([this] { work(); }) {}
  ~Thread() {
    post([this] { stop_ = true; });
    thread_.join();
  }
  void run(std::function<void()> task) {
    std::promise<void> done;
    auto future = done.get_future();
    post([&] {
      try {
        task();
        done.set_value();
      } catch (...) {
        done.set_exception(std::current_exception());
      }
    });
    future.get();
  }

private:
  void post(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }
  void work() {
    while (!stop_) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::thread thread_;
};

Transport& Transport::join(const Launch& launch) {
  ENSURE(!joined, "the ranks are joined twice");
  joined.reset(new Transport);
  Transport* t = joined.get();
  if (!launch.by_mpi || launch.world == 1) return *t;
  t->mpi_ = load_mpi();
  t->thread_ = std::make_unique<Thread>();
  t->thread_->run([&] {
    const char* problem = t->mpi_->initialise();
    DEMAND(!problem, "MPI did not start: ", problem);
    t->rank_ = t->mpi_->rank();
    t->size_ = t->mpi_->size();
    t->local_size_ = t->mpi_->local_size();
  });
  DEMAND(launch.world == 0 || t->size_ == launch.world, launch.launcher, " announced ", launch.world,
         " ranks, but MPI sees ", t->size_,
         ": the launcher and the MPI library do not belong together; use the mpirun of the Open MPI that triax was "
         "built with, or "
         "`srun --mpi=pmix`");
  return *t;
}

std::unique_ptr<Transport> Transport::ghost(int rank, int world) {
  std::unique_ptr<Transport> t(new Transport);
  t->rank_ = rank;
  t->size_ = world;
  return t;
}

Transport* Transport::current() { return joined.get(); }

void Transport::leave() { joined.reset(); }

Transport::~Transport() {
  if (mpi_ && thread_) thread_->run([this] { mpi_->finalise(); });
}

void Transport::complete(const std::function<void*()>& start) {
  if (!mpi_) return;
  thread_->run([&] {
    MpiApi::Request request = start();
    for (BackOff back_off; !mpi_->test(&request);) back_off.pause();
  });
}

Group Transport::group(const std::string& name, const std::vector<int>& ranks) {
  if (!mpi_ || ranks.size() == 1) return {name, ranks, nullptr};
  void*& communicator = communicators_[ranks];
  if (!communicator) thread_->run([&] { communicator = mpi_->communicator(ranks.data(), int(ranks.size())); });
  return {name, ranks, communicator};
}

void Transport::barrier() {
  complete([&] { return mpi_->barrier(mpi_->world()); });
}

void Transport::broadcast(void* data, int64_t bytes, int root) {
  complete([&] { return mpi_->broadcast(data, bytes, root, mpi_->world()); });
}

void Transport::broadcast(std::string& text, int root) {
  int64_t size = int64_t(text.size());
  broadcast(&size, sizeof size, root);
  text.resize(size_t(size));
  broadcast(text.data(), size, root);
}

double Transport::sum(double value) {
  complete([&] { return mpi_->all_reduce(&value, 1, MpiApi::Type::f64, mpi_->world()); });
  return value;
}

std::vector<uint64_t> Transport::gather(uint64_t value) {
  std::vector<uint64_t> all(size_t(mpi_ ? size_ : 1), value);
  complete([&] { return mpi_->all_gather(&value, all.data(), sizeof value, mpi_->world()); });
  return all;
}

void Transport::all_reduce(float* data, int64_t count, const Group& group) {
  if (group.size() == 1) return;
  ENSURE(group.communicator(), "group ", group.name(), " has ", group.size(), " ranks but no transport");
  complete([&] { return mpi_->all_reduce(data, count, MpiApi::Type::f32, group.communicator()); });
}

void Transport::abort(int code) {
  if (mpi_) mpi_->abort(code); // not by the thread: it may wait for the very peer that this ends
  std::_Exit(code);
}

} // namespace triax
