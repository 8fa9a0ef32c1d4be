#include "comm/nccl.h"
#include "kernels/libraries.h"
#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>

namespace triax {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kWatchEvery = std::chrono::milliseconds(100);

constexpr const char* kRemedy = "install NCCL 2.18 or newer (package libnccl2, or the PyPI wheel nvidia-nccl-cu12 or "
                                "nvidia-nccl-cu13) and name its file in TRIAX_NCCL if the loader does not find it, or "
                                "set comm.transport=mpi";

std::string opened_version; // for receipts

const LibraryRegistration kNccl("NCCL", [] { return opened_version; });

std::string version_text(int v) { return concat(v / 10000, ".", v / 100 % 100, ".", v % 100); }

NcclApi::Type type_of(Dtype dtype) {
  switch (dtype) {
  case Dtype::f32:
    return NcclApi::float32;
  case Dtype::bf16:
    return NcclApi::bfloat16;
  case Dtype::i32:
    return NcclApi::int32;
  case Dtype::u8:
    return NcclApi::uint8;
  }
  fail("a dtype that NCCL's transport does not know");
}

} // namespace

std::string Nccl::library_from_environment() {
  const char* path = std::getenv("TRIAX_NCCL");
  return path && *path ? path : "libnccl.so.2";
}

bool Nccl::shares_gpus() const {
  const char* enabled = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return number_ >= NcclApi::kSharesGpus && enabled && std::string(enabled) == "1";
}

std::string Nccl::obstacle(std::span<const uint64_t> gpus, bool shared) {
  for (size_t r = 0; r < gpus.size(); ++r) {
    if (gpus[r] == 0) return concat("rank ", r, " has no NCCL or no GPU");
    const size_t before = size_t(std::find(gpus.begin(), gpus.end(), gpus[r]) - gpus.begin());
    if (before < r && !shared)
      return concat("ranks ", before, " and ", r,
                    " share a GPU, and NCCL needs one for each rank (for tests, NCCL 2.30 or newer shares one with "
                    "NCCL_MULTI_RANK_GPU_ENABLE=1 in every rank's environment)");
  }
  return "";
}

Nccl::Nccl(const std::string& library, int rank, std::chrono::milliseconds patience)
    : rank_(rank), patience_(patience) {
  load(library);
  watch_ = std::thread([this] { watch(); });
}

void Nccl::load(const std::string& library) {
  void* part = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL); // stays open: NCCL's threads may outlive its users
  DEMAND(part, "NCCL does not load: ", dlerror(), "; looked for ", library, ": ", kRemedy);
  const auto find = [&](auto& function, const char* symbol, bool needed = true) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(part, symbol));
    DEMAND(function || !needed, library, " has no function ", symbol, ", so it is not NCCL 2.18 or newer: ", kRemedy);
  };
  find(api_.get_version, "ncclGetVersion");
  int version = 0;
  const NcclApi::Result result = api_.get_version(&version);
  DEMAND(result == NcclApi::success, library, " does not tell its version (result ", int(result), "): ", kRemedy);
  number_ = version;
  version_ = version_text(version);
  DEMAND(version >= NcclApi::kOldest, library, " is NCCL ", version_, ", which is too old: ", kRemedy);
  find(api_.get_unique_id, "ncclGetUniqueId");
  find(api_.comm_init_rank_config, "ncclCommInitRankConfig");
  find(api_.comm_finalize, "ncclCommFinalize");
  find(api_.comm_destroy, "ncclCommDestroy");
  find(api_.comm_abort, "ncclCommAbort");
  find(api_.comm_get_async_error, "ncclCommGetAsyncError");
  find(api_.get_error_string, "ncclGetErrorString");
  find(api_.get_last_error, "ncclGetLastError");
  find(api_.group_start, "ncclGroupStart");
  find(api_.group_end, "ncclGroupEnd");
  find(api_.all_gather, "ncclAllGather");
  find(api_.send, "ncclSend");
  find(api_.receive, "ncclRecv");
  find(api_.comm_register, "ncclCommRegister", false);
  find(api_.comm_deregister, "ncclCommDeregister", false);
  if (!api_.comm_deregister) api_.comm_register = nullptr;
  opened_version = version_;
}

Nccl::~Nccl() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  watch_.join();
  if (!failure_.empty()) return; // all are aborted
  for (auto& [ranks, member] : members_) {
    try {
      for (const auto& [address, registration] : member.registrations)
        if (registration.handle) api_.comm_deregister(member.handle, registration.handle);
      await(member, api_.comm_finalize(member.handle));
      api_.comm_destroy(member.handle);
    } catch (const std::exception&) { // the run is over; await has aborted all
      return;
    }
  }
}

void Nccl::join(const Group& group, const std::function<void(void* data, int64_t bytes)>& spread) {
  if (members_.count(ranks_of(group))) return; // only this thread adds
  check();
  NcclApi::UniqueId id{};
  NcclApi::Result result = group.index() == 0 ? api_.get_unique_id(&id) : NcclApi::success;
  DEMAND(result == NcclApi::success, "NCCL makes no identity for group ", group.describe(), ": ",
         api_.get_error_string(result), ": ", api_.get_last_error(nullptr));
  spread(&id, sizeof id);
  NcclApi::Config config;
  config.blocking = 0; // a rank that never comes is a time-out, not a hang
  Member* member = nullptr;
  {
    const std::lock_guard lock(mutex_);
    throw_failure();
    member = &members_[ranks_of(group)];
    member->group = group;
    result = api_.comm_init_rank_config(&member->handle, group.size(), id, group.index(), &config);
  }
  await(*member, result);
}

Nccl::Member& Nccl::member_of(const Group& group) {
  const auto found = members_.find(ranks_of(group));
  ENSURE(found != members_.end(), "group ", group.describe(), " has not joined NCCL");
  return found->second;
}

void Nccl::register_memory(const Group& group, uint64_t address, int64_t bytes) {
  if (!api_.comm_register) return;
  const std::lock_guard lock(mutex_);
  throw_failure();
  Member& member = member_of(group);
  Registration& r = member.registrations[address];
  if (r.users++ > 0) return;
  // It makes exchanges faster, not possible: a refusal is no error.
  if (api_.comm_register(member.handle, reinterpret_cast<void*>(address), size_t(bytes), &r.handle) != NcclApi::success)
    r.handle = nullptr;
}

void Nccl::deregister_memory(const Group& group, uint64_t address) {
  const std::lock_guard lock(mutex_);
  if (!api_.comm_register || !failure_.empty()) return;
  Member& member = member_of(group);
  const auto found = member.registrations.find(address);
  ENSURE(found != member.registrations.end(), "memory that was not registered for ", group.describe());
  if (--found->second.users > 0) return;
  if (found->second.handle) api_.comm_deregister(member.handle, found->second.handle);
  member.registrations.erase(found);
}

template <class Call>
void Nccl::enqueue(const char* kind, const Tensor& t, const Group& group, int64_t sequence, const Call& call) {
  Member* member = nullptr;
  NcclApi::Result result;
  {
    const std::lock_guard lock(mutex_);
    throw_failure();
    member = &member_of(group);
    member->kind = kind;
    member->sequence = sequence;
    member->operand = t;
    result = call(member->handle);
  }
  await(*member, result); // until then it may not yet stand in the stream, which something else would overtake
}

void Nccl::all_gather(const Tensor& out, const Tensor& in, const Group& group, int64_t sequence, void* stream) {
  enqueue("all_gather", out, group, sequence, [&](NcclApi::Communicator comm) {
    return api_.all_gather(in.data<void>(), out.data<void>(), size_t(in.size()), type_of(in.dtype), comm, stream);
  });
}

void Nccl::all_to_all(const Tensor& out, const Tensor& in, const Group& group, int64_t sequence, void* stream) {
  const int64_t count = out.size() / group.size(), bytes = out.bytes() / group.size();
  enqueue("all_to_all", out, group, sequence, [&](NcclApi::Communicator comm) {
    NcclApi::Result result = api_.group_start();
    for (int peer = 0; peer < group.size() && result == NcclApi::success; ++peer) {
      result = api_.send(in.data<std::byte>() + peer * bytes, size_t(count), type_of(in.dtype), peer, comm, stream);
      if (result == NcclApi::success)
        result =
            api_.receive(out.data<std::byte>() + peer * bytes, size_t(count), type_of(in.dtype), peer, comm, stream);
    }
    const NcclApi::Result end = api_.group_end(); // also after an error, which must not leave the thread in a group
    return result == NcclApi::success ? end : result;
  });
}

void Nccl::shift(const Tensor& out, const Tensor& in, const Group& group, int64_t sequence, void* stream) {
  const size_t count = size_t(in.size());
  enqueue("shift", out, group, sequence, [&](NcclApi::Communicator comm) {
    NcclApi::Result result = api_.group_start();
    if (result == NcclApi::success)
      result = api_.send(in.data<void>(), count, type_of(in.dtype), group.next(), comm, stream);
    if (result == NcclApi::success)
      result = api_.receive(out.data<void>(), count, type_of(out.dtype), group.previous(), comm, stream);
    const NcclApi::Result end = api_.group_end(); // also after an error, as above
    return result == NcclApi::success ? end : result;
  });
}

void Nccl::send(const Tensor& in, const Group& link, int64_t sequence, void* stream) {
  ENSURE(link.index() == 0, "rank ", rank_, " does not send over ", link.describe());
  enqueue("send", in, link, sequence, [&](NcclApi::Communicator comm) {
    return api_.send(in.data<void>(), size_t(in.size()), type_of(in.dtype), 1, comm, stream);
  });
}

void Nccl::receive(const Tensor& out, const Group& link, int64_t sequence, void* stream) {
  ENSURE(link.index() == 1, "rank ", rank_, " does not receive over ", link.describe());
  enqueue("receive", out, link, sequence, [&](NcclApi::Communicator comm) {
    return api_.receive(out.data<void>(), size_t(out.size()), type_of(out.dtype), 0, comm, stream);
  });
}

void Nccl::check() {
  const std::lock_guard lock(mutex_);
  throw_failure();
}

void Nccl::throw_failure() const {
  if (!failure_.empty()) fail(failure_);
}

/// Returns when the communicator has done, on the host, what was asked of it. The watch goes on between the polls.
void Nccl::await(Member& member, NcclApi::Result result) {
  constexpr int kYields = 100;
  const auto since = Clock::now();
  for (int round = 0; result == NcclApi::in_progress; ++round) {
    round < kYields ? std::this_thread::yield() : std::this_thread::sleep_for(std::chrono::microseconds(50));
    const std::lock_guard lock(mutex_);
    throw_failure();
    result = state_of(member);
    if (result != NcclApi::in_progress || patience_.count() == 0 || Clock::now() - since < patience_) continue;
    abort_all(concat("rank ", rank_, " has waited ", double(patience_.count()) / 1000, " s for the others of group ",
                     member.group.describe(),
                     member.kind ? concat(" at ", member.kind, " #", member.sequence) : " to join it in NCCL",
                     "; see what they say, or raise comm.timeout"));
    throw_failure();
  }
  if (result == NcclApi::success) return;
  const std::lock_guard lock(mutex_);
  throw_failure();
  abort_all(failure_of(member, result));
  throw_failure();
}

NcclApi::Result Nccl::state_of(const Member& member) const {
  NcclApi::Result state = NcclApi::success;
  const NcclApi::Result asked = api_.comm_get_async_error(member.handle, &state);
  return asked == NcclApi::success ? state : asked;
}

std::string Nccl::failure_of(const Member& member, NcclApi::Result result) const {
  const std::string at = member.kind
                             ? concat("with ", member.kind, " #", member.sequence, " of ", member.operand.describe(),
                                      " as the last operation that this rank enqueued there")
                             : "before its first operation";
  return concat("NCCL failed in group ", member.group.describe(), ", ", at, ": ", api_.get_error_string(result), ": ",
                api_.get_last_error(member.handle),
                "; NCCL_DEBUG=INFO in the environment shows more, comm.transport=mpi goes without NCCL");
}

void Nccl::abort_all(const std::string& sentence) {
  failure_ = sentence;
  for (auto& [ranks, member] : members_) {
    if (member.handle) api_.comm_abort(member.handle); // ends what waits on the device, too
    member.handle = nullptr;
  }
}

void Nccl::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kWatchEvery, [this] { return stop_; })) {
    for (const auto& [ranks, member] : members_) {
      const NcclApi::Result state = member.handle ? state_of(member) : NcclApi::success;
      if (state == NcclApi::success || state == NcclApi::in_progress) continue;
      abort_all(failure_of(member, state));
      return;
    }
  }
}

} // namespace triax
