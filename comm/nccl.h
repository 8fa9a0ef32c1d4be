// NCCL, opened at run time: collectives that a GPU's streams do by themselves. Tests execute this file through a
// stand-in on host memory; it has not run on a GPU.
#pragma once
#include "comm/nccl_api.h"
#include "comm/transport.h"
#include "kernels/tensor.h"
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace triax {

/// The communicators of one rank, one for each sequence of ranks (so a link's two directions have one each). All
/// members are called by the thread that issues. A thread watches for what goes wrong meanwhile: then every
/// communicator is aborted, what was enqueued ends unfinished, and every later call throws the sentence that says why.
class Nccl {
public:
  /// Opens `library`: a path, or what the loader finds under that name. Throws where it is not there, too old, or lacks
  /// a function. `patience`: what a wait for other ranks may take, 0: for ever.
  Nccl(const std::string& library, int rank, std::chrono::milliseconds patience);
  ~Nccl(); ///< with all ranks, after a run that went well
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;
  /// What TRIAX_NCCL in the environment names, else libnccl.so.2.
  static std::string library_from_environment();

  std::string version() const { return version_; } ///< "2.28.9"

  /// May several ranks have one GPU? From NCCL 2.30 on, where NCCL_MULTI_RANK_GPU_ENABLE=1 stands in the environment.
  bool shares_gpus() const;
  /// Why NCCL cannot serve ranks that have these GPUs (by rank; 0: no NCCL or no GPU); empty where it can.
  static std::string obstacle(std::span<const uint64_t> gpus, bool shared);

  /// Makes the group's communicator, on the calling thread's GPU, where there is none yet. Collective over its ranks.
  /// `spread` copies bytes from the group's index 0 to all of its ranks.
  void join(const Group& group, const std::function<void(void* data, int64_t bytes)>& spread);

  /// Lets the group's operations use this memory without copies of it, until as many calls of `deregister_memory`.
  /// Nothing where the library cannot (before 2.19), or does not want to.
  void register_memory(const Group& group, uint64_t address, int64_t bytes);
  void deregister_memory(const Group& group, uint64_t address);

  // Enqueued on the stream, not waited for; dense tensors, as in comm/collective.h. `sequence` is for sentences.
  void all_gather(const Tensor& out, const Tensor& in, const Group& group, int64_t sequence, void* stream);
  void all_to_all(const Tensor& out, const Tensor& in, const Group& group, int64_t sequence, void* stream);
  void shift(const Tensor& out, const Tensor& in, const Group& group, int64_t sequence, void* stream);
  void send(const Tensor& in, const Group& link, int64_t sequence, void* stream);
  void receive(const Tensor& out, const Group& link, int64_t sequence, void* stream);

  /// Throws where something has failed. What lies in memory after a wait for a stream counts only if this does not.
  void check();

private:
  struct Registration {
    void* handle = nullptr;
    int users = 0;
  };
  struct Member {
    Group group;
    NcclApi::Communicator handle = nullptr;
    const char* kind = nullptr; ///< of the operation that was enqueued last; null: none yet
    int64_t sequence = 0;
    Tensor operand;
    std::map<uint64_t, Registration> registrations; ///< by address
  };
  void load(const std::string& library);
  Member& member_of(const Group& group);
  template <class Call>
  void enqueue(const char* kind, const Tensor& t, const Group& group, int64_t sequence, const Call& call);
  void await(Member& member, NcclApi::Result result);
  NcclApi::Result state_of(const Member& member) const; ///< of its communicator, holding mutex_
  std::string failure_of(const Member& member, NcclApi::Result result) const;
  void abort_all(const std::string& sentence); ///< holding mutex_
  void throw_failure() const;                  ///< holding mutex_
  void watch();

  NcclApi api_{};
  int number_ = 0; ///< as ncclGetVersion gives it
  std::string version_;
  const int rank_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_; ///< of all below, and of calls that must not meet an abort
  std::condition_variable changed_;
  using Ranks = std::pair<bool, std::vector<int>>; ///< a ring's, or others'
  static Ranks ranks_of(const Group& group) { return {group.axes().is_ring(), group.ranks()}; }
  std::map<Ranks, Member> members_;
  std::string failure_; ///< empty: all is well
  bool stop_ = false;
  std::thread watch_; // last: it starts when all else is there
};

} // namespace triax
