// Does a step of many ranks end? Their collectives, already matched, are played through.
#pragma once
#include "comm/collective_trace.h"

namespace triax {

enum class Semantics {
  independent_streams, ///< a collective is entered when its stream reaches it (MPI)
  one_at_a_time        ///< and when the device has done all collectives that were issued before (NCCL)
};

/// Ranks of one role issue the same program and meet the same roles in every group: they are always equally far, so one
/// of them is played for all. `blocks`: the sets of roles that meet in groups of one kind.
struct Roles {
  explicit Roles(const Traces& traces);
  std::vector<int> of_rank;
  std::vector<int> example;               ///< a rank of each role
  std::vector<std::vector<int>> block_of; ///< by kind of communicator and role: an index into `blocks`
  std::vector<std::vector<int>> blocks;   ///< roles, ascending
};

/// Empty where all ends; else a sentence with a cycle of ranks that wait for each other. Every group's operations must
/// match, and each rank's of one communicator be ordered by events where they are on two streams.
std::string find_deadlock(const Traces& traces, const Roles& roles, Semantics semantics);

} // namespace triax
