// The processes of a run and what they say to each other. One thread makes all MPI calls, polls with back-off and never
// blocks in one.
#pragma once
#include "comm/mesh.h"
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace triax {

struct MpiApi;

/// How this process was launched, from the environment of mpirun and srun. No MPI call.
struct Launch {
  int world = 1;        ///< 0: many by a launcher that does not say how many in the environment; MPI knows
  bool by_mpi = false;  ///< a launcher that MPI understands started us
  std::string launcher; ///< "mpirun", "srun", "none"
  /// Throws where a launcher announced several tasks that MPI would not see (each would train alone).
  static Launch detect();
};

/// Some ranks that act together. A group of one does nothing, at once.
class Group {
public:
  Group() = default;
  Group(std::string name, std::vector<int> ranks, void* communicator)
      : name_(std::move(name)), ranks_(std::move(ranks)), communicator_(communicator) {}
  const std::string& name() const { return name_; }
  int size() const { return int(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  void* communicator() const { return communicator_; }

private:
  std::string name_ = "self";
  std::vector<int> ranks_{0};
  void* communicator_ = nullptr;
};

/// All members are called by one thread (besides the streams' collectives).
class Transport {
public:
  /// Joins the ranks of this launch, once a process; alone where there is one. Throws where MPI's part is missing or
  /// does not start. It outlives errors, so that `main` can end all ranks when one fails.
  static Transport& join(const Launch& launch);
  static Transport* current(); ///< what was joined; null before
  static void leave();         ///< with all ranks, at the end of a run that went well
  /// For plans: `world` ranks that are not there, seen as `rank`. Collectives can be recorded, not run.
  static std::unique_ptr<Transport> ghost(int rank, int world);
  ~Transport();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_size() const { return local_size_; } ///< ranks of this host

  /// Collective over all ranks of the mesh that form such groups; the same ranks share one communicator.
  Group group(const std::string& name, const std::vector<int>& ranks);

  // Outside of steps, over all ranks; each blocks until it is done.
  void barrier();
  void broadcast(void* data, int64_t bytes, int root);
  void broadcast(std::string& text, int root);
  double sum(double value);
  std::vector<uint64_t> gather(uint64_t value); ///< by rank

  /// In place, blocking the calling thread (a stream's) only: what a collective operation launches.
  void all_reduce(float* data, int64_t count, const Group& group);

  [[noreturn]] void abort(int code);

private:
  class Thread;
  Transport() = default;
  void complete(const std::function<void*()>& start);
  int rank_ = 0, size_ = 1, local_size_ = 1;
  const MpiApi* mpi_ = nullptr;
  std::map<std::vector<int>, void*> communicators_;
  std::unique_ptr<Thread> thread_;
};

} // namespace triax
