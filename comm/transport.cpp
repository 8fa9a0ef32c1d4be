#include "comm/transport.h"
#include "comm/mpi_api.h"
#include "comm/nccl.h"
#include "comm/transport_thread.h"
#include "kernels/check.h"
#include "kernels/device.h"
#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <unistd.h>
#include <utility>
#include <vector>

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

std::span<const char* const> names(TransportChoice) {
  static constexpr const char* kNames[] = {"auto", "nccl", "mpi"};
  return kNames;
}

std::string Group::describe() const {
  std::vector<std::string> numbers;
  for (int rank : ranks_) numbers.push_back(std::to_string(rank));
  return concat(axes_.name(), " (ranks ", listed(numbers, 16), ")");
}

Transport& Transport::join(const Launch& launch) {
  ENSURE(!joined, "the ranks are joined twice");
  joined.reset(new Transport);
  Transport* t = joined.get();
  if (!launch.by_mpi || launch.world == 1) return *t;
  t->mpi_ = load_mpi();
  t->thread_ = std::make_unique<Thread>(t->mpi_);
  t->thread_->run([&] {
    const char* problem = t->mpi_->initialise();
    DEMAND(!problem, "MPI did not start: ", problem);
    t->rank_ = t->mpi_->rank();
    t->size_ = t->mpi_->size();
    t->local_size_ = t->mpi_->local_size();
    t->host_ = t->mpi_->local_first();
    t->thread_->begin_waits(t->rank_, t->size_);
    return MpiApi::Request{};
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
  nccl_.reset();
  if (!mpi_ || !thread_) return;
  thread_->run([this] {
    thread_->end_waits();
    mpi_->finalise();
    return MpiApi::Request{};
  });
}

void Transport::complete(const char* kind, const Group* group, const Origin& origin,
                         const std::function<void*()>& start) {
  if (mpi_) thread_->run(kind, group, origin, start);
}

void Transport::set_timeout(int64_t seconds) {
  timeout_ = std::chrono::seconds(seconds);
  if (thread_) thread_->set_timeout(timeout_);
}

Transport::LongWork::LongWork(Transport& transport, const char* what) : transport_(transport) {
  if (transport_.thread_) transport_.thread_->set_long_work(what);
}

Transport::LongWork::~LongWork() {
  if (transport_.thread_) transport_.thread_->set_long_work(nullptr);
}

Group Transport::group(const Mesh& mesh, Axes axes) {
  const std::vector<int> ranks = mesh.group(axes);
  void* communicator = nullptr;
  if (mpi_ && ranks.size() > 1) {
    void*& known = communicators_[{axes.is_ring(), ranks}];
    const auto create = [&] {
      known = mpi_->communicator(ranks.data(), int(ranks.size()));
      return MpiApi::Request{};
    };
    if (!known) thread_->run(create);
    communicator = known;
  }
  const auto own = std::find(ranks.begin(), ranks.end(), mesh.rank());
  const Group group(axes, ranks, int(own - ranks.begin()), communicator);
  if (nccl_ && ranks.size() > 1)
    nccl_->join(group, [&](void* data, int64_t bytes) {
      complete("broadcast", &group, {}, [&] { return mpi_->broadcast(data, bytes, 0, communicator); });
    });
  return group;
}

std::string Transport::choose(TransportChoice choice, const Target& target) {
  nccl_.reset();
  const bool asked = choice == TransportChoice::nccl;
  DEMAND(!asked || target.kind == Target::Kind::cuda,
         "comm.transport is nccl, which carries data between GPUs, but the "
         "target is ",
         target.name, ": leave comm.transport at auto");
  if (!mpi_ || size_ == 1 || target.kind != Target::Kind::cuda || choice == TransportChoice::mpi) return "";
  std::unique_ptr<Nccl> nccl;
  std::string problem;
  try {
    nccl = std::make_unique<Nccl>(Nccl::library_from_environment(), rank_, timeout_);
  } catch (const Error& error) {
    problem = error.what();
  }
  const auto gpus = gather(nccl && gpu_identity ? gpu_identity() : 0); // all see the same, so all agree
  const auto share = gather(nccl && nccl->shares_gpus());
  if (problem.empty()) problem = Nccl::obstacle(gpus, std::find(share.begin(), share.end(), 0u) == share.end());
  DEMAND(problem.empty() || !asked, "comm.transport is nccl, but: ", problem);
  if (!problem.empty()) return concat("collectives by MPI, through the host's memory: ", problem);
  take(std::move(nccl));
  return concat("collectives by NCCL ", nccl_->version());
}

void Transport::take(std::unique_ptr<Nccl> nccl) { nccl_ = std::move(nccl); }

std::vector<int> Transport::hosts() {
  const auto all = gather(uint64_t(host_));
  return {all.begin(), all.end()};
}

std::string Transport::library() const {
  if (!mpi_) return "";
  const std::string text = mpi_->library(); // "Open MPI v4.1.4, package: ..."
  return text.substr(0, text.find_first_of(",\n"));
}

void Transport::barrier() {
  complete("barrier", nullptr, {}, [&] { return mpi_->barrier(mpi_->world()); });
}

void Transport::broadcast(void* data, int64_t bytes, int root) {
  complete("broadcast", nullptr, {}, [&] { return mpi_->broadcast(data, bytes, root, mpi_->world()); });
}

void Transport::broadcast(std::string& text, int root) {
  int64_t size = int64_t(text.size());
  broadcast(&size, sizeof size, root);
  text.resize(size_t(size));
  broadcast(text.data(), size, root);
}

void Transport::combine(void* data, int64_t bytes, int root) {
  complete("combine", nullptr, {}, [&] { return mpi_->combine(data, bytes, root, mpi_->world()); });
}

double Transport::sum(double value) {
  complete("sum", nullptr, {}, [&] { return mpi_->sum(&value, mpi_->world()); });
  return value;
}

std::vector<uint64_t> Transport::gather(uint64_t value) {
  std::vector<uint64_t> all(size_t(mpi_ ? size_ : 1), value);
  complete("gather", nullptr, {}, [&] { return mpi_->all_gather(&value, all.data(), sizeof value, mpi_->world()); });
  return all;
}

void Transport::all_gather(const void* mine, void* all, int64_t bytes_each, const Group& group, const Origin& origin) {
  ENSURE(group.communicator(), "group ", group.axes().name(), " has ", group.size(), " ranks but no transport");
  complete("all_gather", &group, origin, [&] { return mpi_->all_gather(mine, all, bytes_each, group.communicator()); });
}

void Transport::all_to_all(const void* send, void* receive, int64_t bytes_each, const Group& group,
                           const Origin& origin) {
  ENSURE(group.communicator(), "group ", group.axes().name(), " has ", group.size(), " ranks but no transport");
  complete("all_to_all", &group, origin,
           [&] { return mpi_->all_to_all(send, receive, bytes_each, group.communicator()); });
}

void Transport::shift(const void* mine, void* before, int64_t bytes, const Group& group, const Origin& origin) {
  ENSURE(group.communicator(), "group ", group.axes().name(), " has ", group.size(), " ranks but no transport");
  complete("shift", &group, origin,
           [&] { return mpi_->shift(mine, group.next(), before, group.previous(), bytes, group.communicator()); });
}

void Transport::send(const void* data, int64_t bytes, const Group& link, const Origin& origin) {
  ENSURE(link.communicator() && link.index() == 0, "rank ", rank_, " does not send over ", link.axes().name());
  complete("send", &link, origin, [&] { return mpi_->send(data, bytes, 1, link.communicator()); });
}

void Transport::receive(void* data, int64_t bytes, const Group& link, const Origin& origin) {
  ENSURE(link.communicator() && link.index() == 1, "rank ", rank_, " does not receive over ", link.axes().name());
  complete("receive", &link, origin, [&] { return mpi_->receive(data, bytes, 0, link.communicator()); });
}

void Transport::abort(int code) {
  if (mpi_) mpi_->abort(code); // not by the thread: it may wait for the very peer that this ends
  std::_Exit(code);
}

} // namespace triax
