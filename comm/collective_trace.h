// What the recorded steps of all ranks do to communicators: the material of the collective check.
#pragma once
#include "comm/collective.h"

namespace triax {

/// All ranks of a mesh and their groups, from the mesh of any one of them. Ranks that are the same for two sets of axes
/// (an axis of size 1 adds none) share one communicator, so a group is known by its axes of more than one rank.
class RankGrid {
public:
  explicit RankGrid(const Mesh& mesh);
  int ranks() const { return int(place_of_.size()); }
  Axes communicator(Axes axes) const; ///< without the axes of size 1
  int size(Axes axes) const;
  /// The same number for all ranks of a group, below ranks().
  int group_of(int rank, Axes axes) const;
  std::vector<int> members(int rank, Axes axes) const; ///< as Mesh::group

private:
  std::pair<int, int> ends_of(int rank, Axes link) const; ///< places
  std::array<int, kAxes> size_{}, stride_{};              ///< of each axis, in places of the mesh's order
  std::vector<Axis> outermost_first_;                     ///< axes of more than one rank
  std::vector<int> rank_at_, place_of_;
};

/// A collective of a recorded step.
struct TracedCollective {
  int32_t instruction; ///< in Program::instructions
  int32_t kind;        ///< of communicator: an index into Traces::kinds
  int32_t nth;         ///< of its communicator's, in the order of issue
  StreamId stream;
};

/// What a stream must do or wait for, in its order; operations of the rank alone are left out.
struct TracedStep {
  enum class What : uint8_t { collective, record, wait };
  What what;
  int32_t index; ///< of TracedRank::collectives, or the event
};

/// A recorded step reduced to what other ranks can notice.
struct Trace {
  const Program* program;
  std::vector<TracedCollective> collectives; ///< in the order of issue
  std::vector<std::vector<int32_t>> of_kind; ///< by kind of communicator: indices into `collectives`
  std::array<std::vector<TracedStep>, kStreams> queues;

  const Op& op(const TracedCollective& c) const;
  CollectiveAttributes attributes(const TracedCollective& c) const { return op(c).get<CollectiveAttributes>(); }
  Axes axes(const TracedCollective& c) const { return Axes(uint32_t(attributes(c).axes)); }
  std::string describe(const TracedCollective& c) const; ///< "#3 all_gather(...) at model/decoder.cpp:97"
};

/// The steps of all ranks; those whose programs are the same to others share a trace.
struct Traces {
  Traces(const Mesh& mesh, const std::vector<const Program*>& of_rank);
  const Trace& of(int rank) const { return traces[size_t(trace_of[size_t(rank)])]; }
  RankGrid grid;
  std::vector<Axes> kinds; ///< of communicators that are used, each without axes of size 1
  std::vector<Trace> traces;
  std::vector<int> trace_of; ///< by rank
};

std::string ranks_text(const std::vector<int>& ranks); ///< "rank 3", "ranks 0, 1, 2, 3 and 12 more"

} // namespace triax
