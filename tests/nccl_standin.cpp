// A stand-in for NCCL on host memory, for tests: ranks are threads of one process, each thread with a device of its
// own. It does what the calls say and holds the caller to NCCL's rules: a device does one launch at a time, in the
// order of launching, over all its communicators, so that crossed orders are a deadlock, which is found and reported;
// all ranks must agree in kind, count and type; a communicator is used when it is ready, and not after its end; a call
// on a communicator that does not block is done when ncclCommGetAsyncError says so. What is against the rules is an
// error, and is kept for `first_fault`.
#include "tests/nccl_standin.h"
#include "tests/nccl_standin_match.h"
#include <chrono>

using namespace triax;
using namespace triax::standin;

namespace {

const StandinControl kControl{
    .make_stream = []() -> void* {
      const Lock lock(world.mutex);
      world.streams.push_back(std::make_unique<Stream>());
      world.streams.back()->device = device_of_thread();
      return world.streams.back().get();
    },
    .synchronize =
        [](void* at, int ms) {
          std::unique_lock lock(world.mutex);
          const auto* stream = static_cast<Stream*>(at);
          for (const auto& comm : world.communicators)
            if (!comm->dead && comm->device == stream->device && comm->asked)
              refuse(Api::invalid_usage, "a stream is waited for while a launch is still in progress");
          return world.changed.wait_for(lock, std::chrono::milliseconds(ms), [&] { return stream->pending == 0; });
        },
    .forget =
        [] {
          const Lock lock(world.mutex);
          world.cliques.clear();
          world.communicators.clear();
          world.launches.clear();
          world.streams.clear();
          world.devices.clear();
          world.until_failure = 0;
          world.most_waiting = 0;
          world.fault.clear();
          ++world.generation;
        },
    .fail_at =
        [](int launch) {
          const Lock lock(world.mutex);
          world.until_failure = launch;
        },
    .open =
        [] {
          const Lock lock(world.mutex);
          return int(std::count_if(world.communicators.begin(), world.communicators.end(),
                                   [](const auto& comm) { return !comm->dead; }));
        },
    .registered =
        [] {
          const Lock lock(world.mutex);
          int n = 0;
          for (const auto& comm : world.communicators) n += int(comm->registrations.size());
          return n;
        },
    .most_waiting =
        [] {
          const Lock lock(world.mutex);
          return int(world.most_waiting);
        },
    .first_fault =
        [] {
          const Lock lock(world.mutex);
          return world.fault.c_str();
        },
};

} // namespace

__attribute__((visibility("default"))) const triax::StandinControl* nccl_standin_control() { return &kControl; }

#define STANDIN_API extern "C" __attribute__((visibility("default"), used)) Api::Result

STANDIN_API ncclGetVersion(int* version) {
  *version = STANDIN_VERSION;
  return Api::success;
}

STANDIN_API ncclGetUniqueId(Api::UniqueId* id) {
  const Lock lock(world.mutex);
  std::memset(id->bytes, 0, sizeof id->bytes);
  const std::string name = text("clique ", ++world.identities);
  std::memcpy(id->bytes, name.data(), name.size());
  return Api::success;
}

STANDIN_API ncclCommInitRankConfig(Communicator** made, int ranks, Api::UniqueId id, int rank, Api::Config* config) {
  const Lock lock(world.mutex);
  if (!config || config->magic != Api::Config{}.magic || config->size != sizeof(Api::Config) ||
      config->version < Api::kOldest)
    return refuse(Api::invalid_argument, "the configuration is not initialised");
  if (std::string(id.bytes).rfind("clique ", 0) != 0) return refuse(Api::invalid_argument, "the unique id is none");
  auto& clique = world.cliques[id.bytes];
  if (!clique) {
    clique = std::make_unique<Clique>();
    clique->size = ranks;
    clique->members.resize(size_t(ranks));
  }
  if (clique->size != ranks || rank < 0 || rank >= ranks || clique->members[size_t(rank)])
    return refuse(Api::invalid_argument, text("rank ", rank, " of ", ranks, " cannot join"));
  world.communicators.push_back(std::make_unique<Communicator>());
  Communicator* comm = *made = world.communicators.back().get();
  comm->clique = clique.get();
  comm->rank = rank;
  comm->device = device_of_thread();
  comm->blocking = config->blocking != 0;
  comm->polls = 2;
  clique->members[size_t(rank)] = comm;
  return comm->blocking ? refuse(Api::invalid_usage, "the stand-in has no blocking communicators") : Api::in_progress;
}

STANDIN_API ncclCommGetAsyncError(Communicator* comm, Api::Result* state) {
  const Lock lock(world.mutex);
  if (!comm || comm->dead) return refuse(Api::invalid_argument, "a communicator is asked after its end");
  *state = comm->error;
  if (comm->error != Api::success) return Api::success;
  if (comm->polls > 0) {
    --comm->polls;
    *state = Api::in_progress;
  } else if (!comm->clique->complete()) {
    *state = Api::in_progress;
  } else {
    launch_asked(comm);
  }
  return Api::success;
}

STANDIN_API ncclCommFinalize(Communicator* comm) {
  const Lock lock(world.mutex);
  if (const std::string problem = why_not(comm); !problem.empty()) return refuse(Api::invalid_usage, problem);
  if (!comm->registrations.empty()) return refuse(Api::invalid_usage, "memory is registered beyond its communicator");
  comm->finalised = true;
  comm->polls = 1;
  return Api::in_progress;
}

STANDIN_API ncclCommDestroy(Communicator* comm) {
  const Lock lock(world.mutex);
  if (!comm || comm->dead) return refuse(Api::invalid_usage, "a communicator is destroyed after its end");
  if (!comm->finalised || comm->polls > 0) return refuse(Api::invalid_usage, "a communicator is destroyed unfinalised");
  comm->dead = true;
  return Api::success;
}

#ifndef STANDIN_LACKS_ABORT
STANDIN_API ncclCommAbort(Communicator* comm) {
  const Lock lock(world.mutex);
  if (!comm || comm->dead) return refuse(Api::invalid_usage, "a communicator is aborted after its end");
  comm->dead = true;
  comm->asked.reset();
  comm->registrations.clear();
  const std::deque<Launch*> queue = comm->device->queue;
  for (Launch* launch : queue)
    if (launch->comm == comm) end(launch);
  for (Communicator* member : comm->clique->members)
    if (member && !member->dead && member->error == Api::success) member->error = Api::remote_error;
  world.changed.notify_all();
  return Api::success;
}
#endif

extern "C" __attribute__((visibility("default"))) const char* ncclGetErrorString(Api::Result result) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "remote process exited or there was a network error",
                                    "in progress"};
  return kTexts[int(result)];
}

extern "C" __attribute__((visibility("default"))) const char* ncclGetLastError(Communicator*) {
  const Lock lock(world.mutex);
  return world.fault.c_str(); // the first, which stays until all is forgotten
}

STANDIN_API ncclGroupStart() {
  ++depth;
  return Api::success;
}

STANDIN_API ncclGroupEnd() {
  const Lock lock(world.mutex);
  if (depth == 0) return refuse(Api::invalid_usage, "a group ends that was not started");
  return --depth > 0 ? Api::success : flush();
}

STANDIN_API ncclAllGather(const void* mine, void* all, size_t count, Api::Type type, Communicator* comm, void* stream) {
  return add(comm, {Kind::all_gather, mine, all, count, type, 0, static_cast<Stream*>(stream)});
}

STANDIN_API ncclSend(const void* data, size_t count, Api::Type type, int peer, Communicator* comm, void* stream) {
  return add(comm, {Kind::send, data, nullptr, count, type, peer, static_cast<Stream*>(stream)});
}

STANDIN_API ncclRecv(void* data, size_t count, Api::Type type, int peer, Communicator* comm, void* stream) {
  return add(comm, {Kind::receive, nullptr, data, count, type, peer, static_cast<Stream*>(stream)});
}

#ifndef STANDIN_LACKS_REGISTER
STANDIN_API ncclCommRegister(Communicator* comm, void* memory, size_t bytes, void** handle) {
  const Lock lock(world.mutex);
  if (const std::string problem = why_not(comm); !problem.empty()) return refuse(Api::invalid_usage, problem);
  if (!memory || !bytes || !comm->registrations.insert(memory).second)
    return refuse(Api::invalid_argument, "memory that cannot be registered, or is already");
  *handle = memory;
  return Api::success;
}

STANDIN_API ncclCommDeregister(Communicator* comm, void* handle) {
  const Lock lock(world.mutex);
  if (!comm || comm->dead) return refuse(Api::invalid_usage, "memory is deregistered after its communicator's end");
  if (comm->registrations.erase(handle) == 0) return refuse(Api::invalid_argument, "memory that was not registered");
  return Api::success;
}
#endif
