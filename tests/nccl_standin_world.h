// The state of the stand-in for NCCL: devices with their queues, communicators, and what ranks have launched. Included
// once, by tests/nccl_standin.cpp.
#pragma once
#include "comm/nccl_api.h"
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace triax::standin {

using Api = NcclApi;

struct Clique;
struct Launch;

struct Device {
  std::deque<Launch*> queue; ///< the first is under way
};

struct Stream {
  Device* device = nullptr;
  int pending = 0;
};

enum class Kind { all_gather, send, receive };
constexpr const char* kNames[] = {"all_gather", "send", "receive"};

struct Operation {
  Kind kind;
  const void* from;
  void* to;
  size_t count;
  Api::Type type;
  int peer;
  Stream* stream;
  bool done = false;
};

} // namespace triax::standin

namespace triax {
struct NcclCommunicator {
  standin::Clique* clique = nullptr;
  int rank = 0;
  standin::Device* device = nullptr;
  bool blocking = true;
  int polls = 0; ///< that answer `in_progress` before what was asked for is done
  bool finalised = false, dead = false;
  std::unique_ptr<standin::Launch> asked; ///< launched when the polls are over
  NcclApi::Result error = NcclApi::success;
  std::set<void*> registrations;
};
} // namespace triax

namespace triax::standin {

using Communicator = NcclCommunicator;

struct Clique {
  int size = 0;
  std::vector<Communicator*> members; ///< by rank; null: has not come yet
  bool complete() const { return int(std::count(members.begin(), members.end(), nullptr)) == 0; }
};

/// What one communicator launches: the operations of a group.
struct Launch {
  Communicator* comm;
  std::vector<Operation> operations;
};

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::unique_ptr<Clique>> cliques; ///< by unique id
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Launch>> launches;
  int identities = 0, generation = 0, until_failure = 0;
  size_t most_waiting = 0;
  std::string fault;
};
static World world;

static thread_local int depth = 0;
static thread_local std::vector<std::pair<Communicator*, Operation>> grouped;
static thread_local Device* own_device = nullptr;
static thread_local int own_generation = -1;

using Lock = std::lock_guard<std::mutex>;

template <class... Args> static std::string text(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

static Api::Result refuse(Api::Result result, const std::string& sentence) {
  if (world.fault.empty()) world.fault = sentence;
  return result;
}

static Device* device_of_thread() {
  if (own_generation != world.generation) {
    own_generation = world.generation;
    world.devices.push_back(std::make_unique<Device>());
    own_device = world.devices.back().get();
  }
  return own_device;
}

size_t bytes_of(Api::Type type) { return type == Api::uint8 ? 1 : type == Api::bfloat16 ? 2 : 4; }

std::string name_of(const Operation& o) { return text(kNames[int(o.kind)], " of ", o.count, " of type ", o.type); }

/// Every rank of the clique sees it when it next asks.
static void fail_clique(Clique& clique, Api::Result result, const std::string& sentence) {
  refuse(result, sentence);
  for (Communicator* member : clique.members)
    if (member && !member->dead && member->error == Api::success) member->error = result;
}

static Launch* under_way(const Communicator* comm) {
  if (!comm || comm->device->queue.empty()) return nullptr;
  Launch* first = comm->device->queue.front();
  return first->comm == comm ? first : nullptr;
}

static void copy(const Operation& from, const Operation& to, size_t offset) {
  char* at = static_cast<char*>(to.to) + offset;
  const size_t bytes = from.count * bytes_of(from.type);
  if (bytes && at != from.from) std::memmove(at, from.from, bytes);
}

} // namespace triax::standin
