// The processes of a run and what they say to each other. One thread makes all MPI calls, polls all that are under way
// with back-off and never blocks in one.
#pragma once
#include "comm/mesh.h"
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <span>
#include <string>

namespace triax {

struct MpiApi;
class Nccl;
struct Target;
struct Tensor;

/// What carries the collectives of a GPU's data; a CPU's are MPI's. `automatic`: NCCL where it can be, else MPI.
enum class TransportChoice { automatic, nccl, mpi };
std::span<const char* const> names(TransportChoice);

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
  Group(Axes axes, std::vector<int> ranks, int index, void* communicator)
      : axes_(axes), ranks_(std::move(ranks)), index_(index), communicator_(communicator) {}
  Axes axes() const { return axes_; } ///< along which its members differ
  int size() const { return int(ranks_.size()); }
  int index() const { return index_; } ///< of this rank among them
  const std::vector<int>& ranks() const { return ranks_; }
  int next() const { return (index_ + 1) % size(); } ///< the first follows the last
  int previous() const { return (index_ + size() - 1) % size(); }
  void* communicator() const { return communicator_; }
  std::string describe() const; ///< "shard (ranks 0, 1, 2, 3)"

private:
  Axes axes_{};
  std::vector<int> ranks_{0};
  int index_ = 0;
  void* communicator_ = nullptr;
};

/// Where in a step an operation of a group stands, for sentences about one that does not end.
struct Origin {
  int64_t sequence = -1; ///< in its group's step; -1: outside of steps
  const Tensor* tensor = nullptr;
  const std::source_location* place = nullptr;
};

/// No operation is waited for longer than the time-out, of 600 s at first: then the ranks of its group are asked where
/// they are, all that is under way here throws a sentence with their answers, and nothing is waited for any more. Not
/// covered: what blocks inside MPI (its start and end, the making of a group) and what GPUs do by NCCL.
///
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
  std::string library() const;                   ///< of MPI: its name and version; empty where there is none
  std::vector<int> hosts();                      ///< of each rank, as a number: that of the lowest rank there

  /// From now on the collectives of this target go by what is chosen. Collective over all ranks, which take the same.
  /// Throws where NCCL was asked for and cannot be. Returns a sentence for people; empty where there is no choice.
  std::string choose(TransportChoice choice, const Target& target);
  Nccl* nccl() const { return nccl_.get(); } ///< null: the collectives are MPI's
  void take(std::unique_ptr<Nccl> nccl);     ///< what `choose` does in the end; for tests

  void set_timeout(int64_t seconds); ///< 0: never
  /// While one lives, whoever waits for this rank waits on: its time begins again when it asks. For what one rank does
  /// alone for long.
  class LongWork {
  public:
    LongWork(Transport& transport, const char* what); ///< "saving a checkpoint"; one at a time
    ~LongWork();
    LongWork(const LongWork&) = delete;
    LongWork& operator=(const LongWork&) = delete;

  private:
    Transport& transport_;
  };

  /// This rank's group along the axes. Collective over all ranks of the mesh; the same ranks share one communicator,
  /// but for rings, which have others.
  Group group(const Mesh& mesh, Axes axes);

  // Outside of steps, over all ranks; each blocks until it is done.
  void barrier();
  void broadcast(void* data, int64_t bytes, int root);
  void broadcast(std::string& text, int root);
  /// `data` of `root` becomes the bitwise or of all ranks' data: parts of a whole that are 0 elsewhere, put together.
  void combine(void* data, int64_t bytes, int root);
  double sum(double value);
  std::vector<uint64_t> gather(uint64_t value); ///< by rank

  // What a collective operation launches, blocking the calling thread (a stream's) only; as in mpi_api.h.
  void all_gather(const void* mine, void* all, int64_t bytes_each, const Group& group, const Origin& origin = {});
  void all_to_all(const void* send, void* receive, int64_t bytes_each, const Group& group, const Origin& origin = {});
  /// `mine` goes to the next rank of the group, and `before` comes from the one before; the first follows the last.
  void shift(const void* mine, void* before, int64_t bytes, const Group& group, const Origin& origin = {});

  // Over a link, whose group is {sender, receiver}.
  void send(const void* data, int64_t bytes, const Group& link, const Origin& origin = {});
  void receive(void* data, int64_t bytes, const Group& link, const Origin& origin = {});

  [[noreturn]] void abort(int code);

private:
  class Thread;
  Transport() = default;
  /// Returns when what `start` starts is done. `group`: null for all ranks.
  void complete(const char* kind, const Group* group, const Origin& origin, const std::function<void*()>& start);
  int rank_ = 0, size_ = 1, local_size_ = 1, host_ = 0;
  const MpiApi* mpi_ = nullptr;
  std::map<std::pair<bool, std::vector<int>>, void*> communicators_; ///< by whether they are a ring's, and ranks
  std::unique_ptr<Nccl> nccl_;
  std::chrono::seconds timeout_{600};
  std::unique_ptr<Thread> thread_;
};

} // namespace triax
