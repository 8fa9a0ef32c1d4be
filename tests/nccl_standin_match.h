// What the stand-in for NCCL does with what is launched: ranks meet, data is copied, orders that cross are found.
// Included once, by tests/nccl_standin.cpp.
#pragma once
#include "tests/nccl_standin_world.h"

namespace triax::standin {

/// Does the all_gather if all ranks are in it.
static bool meet_all(Clique& clique) {
  std::vector<Operation*> all;
  for (const Communicator* member : clique.members) {
    Launch* launch = under_way(member);
    if (!launch) return false;
    Operation& o = launch->operations.front();
    if (o.done) return false;
    all.push_back(&o);
  }
  for (const Operation* o : all)
    if (o->kind != all[0]->kind || o->count != all[0]->count || o->type != all[0]->type) {
      fail_clique(clique, Api::invalid_argument,
                  text("ranks disagree: rank 0 is in ", name_of(*all[0]), ", another in ", name_of(*o)));
      return false;
    }
  const size_t bytes = all[0]->count * bytes_of(all[0]->type);
  for (size_t from = 0; from < all.size(); ++from)
    for (const Operation* to : all) copy(*all[from], *to, from * bytes);
  for (Operation* o : all) o->done = true;
  return true;
}

/// Does a send for which its receive is under way.
static bool meet_pair(Clique& clique, Communicator* sender, Operation& send) {
  Launch* there = under_way(clique.members[size_t(send.peer)]);
  if (!there) return false;
  for (Operation& o : there->operations) {
    if (o.done || o.kind != Kind::receive || o.peer != sender->rank) continue;
    if (o.count != send.count || o.type != send.type) {
      fail_clique(clique, Api::invalid_argument,
                  text("ranks disagree: rank ", sender->rank, " is in ", name_of(send), ", rank ", send.peer, " in ",
                       name_of(o)));
      return false;
    }
    copy(send, o, 0);
    send.done = o.done = true;
    return true;
  }
  if (there->operations.front().kind == Kind::all_gather)
    fail_clique(clique, Api::invalid_argument,
                text("ranks disagree: rank ", sender->rank, " is in send, rank ", send.peer, " in all_gather"));
  return false;
}

static void end(Launch* launch) {
  for (Operation& o : launch->operations) --o.stream->pending;
  std::deque<Launch*>& queue = launch->comm->device->queue;
  queue.erase(std::find(queue.begin(), queue.end(), launch));
}

/// The devices that this one's first launch waits for, and that have launched something.
static std::vector<Device*> waits_for(const Device& device) {
  std::vector<Device*> all;
  if (device.queue.empty()) return all;
  const Launch& launch = *device.queue.front();
  for (const Operation& o : launch.operations) {
    if (o.done) continue;
    for (Communicator* member : launch.comm->clique->members)
      if (member && member != launch.comm && (o.kind == Kind::all_gather || member->rank == o.peer) &&
          !under_way(member) && !member->device->queue.empty())
        all.push_back(member->device);
  }
  return all;
}

static bool closes_circle(Device* at, Device* start, std::set<Device*>& seen) {
  for (Device* next : waits_for(*at))
    if (next == start || (seen.insert(next).second && closes_circle(next, start, seen))) return true;
  return false;
}

/// Does all that can be done, then looks for devices that wait for each other in a circle.
static void go_on() {
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& device : world.devices) {
      if (device->queue.empty()) continue;
      Launch* launch = device->queue.front();
      Clique& clique = *launch->comm->clique;
      if (launch->comm->error != Api::success) continue;
      for (Operation& o : launch->operations) {
        if (o.done) continue;
        if (o.kind == Kind::all_gather) moved |= meet_all(clique);
        if (o.kind == Kind::send) moved |= meet_pair(clique, launch->comm, o);
      }
      if (std::all_of(launch->operations.begin(), launch->operations.end(), [](const auto& o) { return o.done; })) {
        end(launch);
        moved = true;
      }
    }
  }
  for (const auto& device : world.devices) {
    std::set<Device*> seen;
    if (device->queue.empty() || device->queue.front()->comm->error != Api::success) continue;
    if (!closes_circle(device.get(), device.get(), seen)) continue;
    const Launch& launch = *device->queue.front();
    fail_clique(*launch.comm->clique, Api::invalid_usage,
                text("orders of launching cross: rank ", launch.comm->rank, " is in ",
                     name_of(launch.operations.front()), ", and another that it waits for waits for it elsewhere"));
  }
  world.changed.notify_all();
}

static void launch_asked(Communicator* comm) {
  if (!comm->asked) return;
  for (Operation& o : comm->asked->operations) ++o.stream->pending;
  world.launches.push_back(std::move(comm->asked));
  comm->device->queue.push_back(world.launches.back().get());
  world.most_waiting = std::max(world.most_waiting, comm->device->queue.size());
  if (world.until_failure > 0 && --world.until_failure == 0)
    comm->error = refuse(Api::system_error, "a planted failure");
  go_on();
}

/// Why the communicator may not be used now; empty where it may.
static std::string why_not(const Communicator* comm) {
  if (!comm) return "a null communicator is used";
  if (comm->dead) return "a communicator is used after its end";
  if (comm->polls > 0 || !comm->clique->complete())
    return "a communicator is used while something is in progress there";
  if (comm->finalised) return "a communicator is used after it was finalised";
  return "";
}

static Api::Result flush() {
  std::vector<std::pair<Communicator*, Operation>> operations;
  operations.swap(grouped);
  bool in_progress = false;
  std::vector<Communicator*> order;
  for (const auto& [comm, o] : operations)
    if (std::find(order.begin(), order.end(), comm) == order.end()) order.push_back(comm);
  for (Communicator* comm : order) {
    if (const std::string problem = why_not(comm); !problem.empty()) return refuse(Api::invalid_usage, problem);
    if (comm->error != Api::success) return comm->error;
    comm->asked = std::make_unique<Launch>(Launch{comm, {}});
    for (const auto& [its, o] : operations)
      if (its == comm) comm->asked->operations.push_back(o);
    const auto gathers = [](const Operation& o) { return o.kind == Kind::all_gather; };
    if (comm->asked->operations.size() > 1 &&
        std::any_of(comm->asked->operations.begin(), comm->asked->operations.end(), gathers))
      return refuse(Api::invalid_usage, "the stand-in takes an all_gather only by itself");
    comm->polls = comm->blocking ? 0 : 1;
    in_progress |= comm->polls > 0;
    if (comm->blocking) launch_asked(comm);
  }
  return in_progress ? Api::in_progress : Api::success;
}

static Api::Result add(Communicator* comm, Operation o) {
  const Lock lock(world.mutex);
  if (const std::string problem = why_not(comm); !problem.empty()) return refuse(Api::invalid_usage, problem);
  if (!o.stream || o.stream->device != comm->device)
    return refuse(Api::invalid_argument, "the stream is not of the communicator's device");
  if (device_of_thread() != comm->device)
    return refuse(Api::invalid_usage, "a thread with another device launches on the communicator");
  if (o.peer < 0 || o.peer >= comm->clique->size)
    return refuse(Api::invalid_argument, text("there is no peer ", o.peer));
  grouped.emplace_back(comm, o);
  return depth > 0 ? Api::success : flush();
}

} // namespace triax::standin
