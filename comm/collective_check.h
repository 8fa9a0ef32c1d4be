// The collectives of all ranks, held against each other before anything runs.
#pragma once
#include "comm/mesh.h"
#include "kernels/program.h"

namespace triax {

/// What is wrong with the collectives of one kind of step, in sentences that name ranks, groups, sequence numbers,
/// places in the source, and what was matched last. Empty where, for certain,
/// - every rank numbers a group's operations from 0 and gives the group its size in the mesh, and no two streams of it
///   enter one communicator (that of the same ranks, whatever the axes are called) without an order by events; a step
///   in which ranks may differ has no collectives;
/// - all ranks of every group issue the same operations in order: same kind, axes, elements and types;
/// - the step ends, both where streams are independent (MPI) and where a device does one collective at a time in the
///   order of issue (NCCL).
/// Two operations of a group that are alike in all of this and have changed places are not seen: only their contents
/// tell them apart. Bytes that a collective shares with other streams are for `faults` of kernels/program.h.
///
/// `of_rank`: what each rank of the mesh issues; ranks that issue the same share a pointer, and the work is done once
/// for those that also meet the same others in every group. `mesh`: that of any rank.
std::vector<std::string> collective_faults(const Mesh& mesh, const std::vector<const Program*>& of_rank);

/// The same for every kind of step of the ranks' plans; also a kind of step that some plan lacks.
std::vector<std::string> collective_faults(const Mesh& mesh, const std::vector<const Plan*>& of_rank);

} // namespace triax
