#include "comm/collective_check.h"
#include "comm/collective_deadlock.h"
#include <algorithm>
#include <map>

namespace triax {
namespace {

constexpr size_t kMaxFaults = 8; // enough to see a pattern

using Sentences = std::vector<std::string>;

std::string group_text(const Traces& traces, int rank, Axes axes) {
  return concat(axes.name(), " (", ranks_text(traces.grid.members(rank, axes)), ")");
}

// ---- what one rank can see alone ----

void check_numbers(const Traces& traces, const Trace& trace, int rank, Sentences& found) {
  std::map<uint32_t, int64_t> next;
  for (const TracedCollective& c : trace.collectives) {
    if (trace.program->ranks_differ) { // what others issue is not known
      found.push_back(concat("rank ", rank, " issues ", trace.axes(c).name(), " ", trace.describe(c),
                             ", but in a step where ranks may differ there can be no collectives"));
      return;
    }
    const Axes axes = trace.axes(c);
    const CollectiveAttributes attributes = trace.attributes(c);
    if (const int size = traces.grid.size(axes); attributes.size != size) {
      found.push_back(concat("rank ", rank, " issues ", trace.describe(c), " for a group of ", attributes.size,
                             ", but ", axes.name(), " has ", size, " ranks in the mesh"));
      return;
    }
    if (const int64_t expected = next[axes.bits()]++; attributes.sequence != expected) {
      found.push_back(concat("rank ", rank, " issues ", trace.describe(c), " of ", axes.name(), " where #", expected,
                             " is due: does each step begin all groups anew, and is there one object a group?"));
      return;
    }
  }
}

/// Of the clocks, which order what a rank issues to one communicator on several streams.
void check_streams(const Traces& traces, const Trace& trace, int rank, Sentences& found) {
  std::vector<Clock> clocks;
  for (const std::vector<int32_t>& alike : trace.of_kind)
    for (size_t n = 1; n < alike.size(); ++n) {
      const TracedCollective& first = trace.collectives[size_t(alike[n - 1])];
      const TracedCollective& second = trace.collectives[size_t(alike[n])];
      if (first.stream == second.stream) continue;
      if (clocks.empty()) clocks = trace.program->clocks();
      const size_t s = size_t(first.stream);
      if (clocks[size_t(second.instruction)][s] >= clocks[size_t(first.instruction)][s]) continue;
      found.push_back(concat("rank ", rank, " issues ", trace.axes(first).name(), " ", trace.describe(first),
                             " on stream ", name_of(first.stream), " and ", trace.axes(second).name(), " ",
                             trace.describe(second), " on stream ", name_of(second.stream), ", both to ",
                             ranks_text(traces.grid.members(rank, trace.axes(first))),
                             ", which is one communicator, and no event orders them"));
      break;
    }
}

// ---- what all ranks of a group must do alike ----

/// In what the n-th operations of a communicator differ; empty where they match, or both are past the end.
std::string difference(const Trace& a, const Trace& b, size_t kind, size_t n) {
  const bool has_a = n < a.of_kind[kind].size(), has_b = n < b.of_kind[kind].size();
  if (!has_a || !has_b) return has_a == has_b ? "" : "number";
  const TracedCollective& ca = a.collectives[size_t(a.of_kind[kind][n])];
  const TracedCollective& cb = b.collectives[size_t(b.of_kind[kind][n])];
  const Op &x = a.op(ca), &y = b.op(cb);
  Sentences parts;
  if (a.axes(ca).bits() != b.axes(cb).bits()) parts.push_back("the group's axes");
  if (a.attributes(ca).sequence != b.attributes(cb).sequence) parts.push_back("sequence");
  const bool pair = (is_send(*x.kind) && is_receive(*y.kind)) || (is_receive(*x.kind) && is_send(*y.kind));
  const bool alike = x.kind == y.kind && !is_send(*x.kind) && !is_receive(*x.kind);
  if (!pair && !alike) parts.push_back("kind");
  bool sizes = x.operand_count == y.operand_count, types = true;
  for (int i = 0; i < std::min(x.operand_count, y.operand_count); ++i) {
    sizes = sizes && x[i].size() == y[i].size();
    types = types && x[i].dtype == y[i].dtype;
  }
  if (!sizes) parts.push_back("size");
  if (!types) parts.push_back("type");
  return listed(parts);
}

/// The first n at which they differ, or -1.
int64_t first_difference(const Trace& a, const Trace& b, size_t kind) {
  const size_t count = std::max(a.of_kind[kind].size(), b.of_kind[kind].size());
  for (size_t n = 0; n < count; ++n)
    if (!difference(a, b, kind, n).empty()) return int64_t(n);
  return -1;
}

/// Groups of one kind in which the same two programs do not match.
struct Mismatch {
  int rank; ///< of the first such group
  int groups = 1;
};

class Matching {
public:
  explicit Matching(const Traces& traces) : traces_(traces) {}
  Sentences faults();

private:
  std::map<std::pair<int, int>, Mismatch> mismatches(size_t kind);
  void describe(size_t kind, const Mismatch& mismatch, Sentences& found) const;
  std::string sentence(size_t kind, const Mismatch& mismatch, const std::vector<int>& usual,
                       const std::vector<int>& other) const;
  std::string issued(const Trace& trace, size_t kind, size_t n) const;
  const Traces& traces_;
};

Sentences Matching::faults() {
  Sentences found;
  for (size_t kind = 0; kind < traces_.kinds.size(); ++kind)
    for (const auto& [programs, mismatch] : mismatches(kind)) {
      if (found.size() >= kMaxFaults) return found;
      describe(kind, mismatch, found);
    }
  return found;
}

std::map<std::pair<int, int>, Mismatch> Matching::mismatches(size_t kind) {
  std::map<std::pair<int, int>, Mismatch> found;
  std::map<std::pair<int, int>, bool> known;
  std::vector<int> first(traces_.trace_of.size(), -1); // program of a group's first rank
  std::map<int, std::vector<int>> counted;             // groups of which another one was counted already
  for (int rank = 0; rank < traces_.grid.ranks(); ++rank) {
    const int group = traces_.grid.group_of(rank, traces_.kinds[kind]), program = traces_.trace_of[size_t(rank)];
    int& usual = first[size_t(group)];
    if (usual < 0) {
      usual = program;
      continue;
    }
    if (usual == program && !traces_.kinds[kind].is_link()) continue;
    const std::pair pair = std::minmax(usual, program);
    const auto [at, is_new] = known.emplace(pair, false);
    if (is_new)
      at->second = first_difference(traces_.traces[size_t(usual)], traces_.traces[size_t(program)], kind) >= 0;
    if (!at->second) continue;
    std::vector<int>& others = counted[group];
    if (std::find(others.begin(), others.end(), program) != others.end()) continue;
    others.push_back(program);
    if (const auto [m, is_first] = found.emplace(pair, Mismatch{rank}); !is_first) ++m->second.groups;
  }
  return found;
}

/// Against what most ranks of the group do.
void Matching::describe(size_t kind, const Mismatch& mismatch, Sentences& found) const {
  std::map<int, std::vector<int>> ranks; // by program
  for (int rank : traces_.grid.members(mismatch.rank, traces_.kinds[kind]))
    ranks[traces_.trace_of[size_t(rank)]].push_back(rank);
  const auto usual =
      std::max_element(ranks.begin(), ranks.end(), [](auto& a, auto& b) { return a.second.size() < b.second.size(); });
  for (const auto& [program, others] : ranks) {
    if (first_difference(traces_.traces[size_t(usual->first)], traces_.traces[size_t(program)], kind) < 0) continue;
    const std::string text = sentence(kind, mismatch, usual->second, others);
    if (std::find(found.begin(), found.end(), text) == found.end() && found.size() < kMaxFaults) found.push_back(text);
  }
}

std::string Matching::issued(const Trace& trace, size_t kind, size_t n) const {
  const std::vector<int32_t>& alike = trace.of_kind[kind];
  return n < alike.size() ? trace.describe(trace.collectives[size_t(alike[n])]) : "nothing more";
}

std::string Matching::sentence(size_t kind, const Mismatch& mismatch, const std::vector<int>& usual,
                               const std::vector<int>& other) const {
  const Trace &a = traces_.of(other[0]), &b = traces_.of(usual[0]);
  const size_t n = size_t(first_difference(a, b, kind));
  const Trace& longer = n < a.of_kind[kind].size() ? a : b;
  const Axes axes = longer.axes(longer.collectives[size_t(longer.of_kind[kind][n])]);
  return concat("the operations of ", group_text(traces_, mismatch.rank, axes), " differ in ",
                difference(a, b, kind, n), ": ", ranks_text(other), other.size() == 1 ? " issues " : " issue ",
                issued(a, kind, n), " where ", ranks_text(usual), usual.size() == 1 ? " issues " : " issue ",
                issued(b, kind, n), "; matched last: ", n > 0 ? issued(b, kind, n - 1) : "none",
                mismatch.groups > 1 ? concat("; so in ", mismatch.groups - 1, " more groups") : std::string());
}

// ---- all together ----

Sentences faults_of(const Traces& traces) {
  Sentences found;
  for (size_t t = 0; t < traces.traces.size() && found.size() < kMaxFaults; ++t) {
    const auto at = std::find(traces.trace_of.begin(), traces.trace_of.end(), int(t));
    const int rank = int(at - traces.trace_of.begin());
    check_numbers(traces, traces.traces[t], rank, found);
    check_streams(traces, traces.traces[t], rank, found);
  }
  if (!found.empty()) return found; // what follows would stumble over the same
  found = Matching(traces).faults();
  if (!found.empty()) return found;
  const Roles roles(traces);
  for (const Semantics semantics : {Semantics::independent_streams, Semantics::one_at_a_time})
    if (found.empty())
      if (const std::string deadlock = find_deadlock(traces, roles, semantics); !deadlock.empty())
        found.push_back(deadlock);
  return found;
}

} // namespace

Sentences collective_faults(const Mesh& mesh, const std::vector<const Program*>& of_rank) {
  Sentences found = faults_of(Traces(mesh, of_rank));
  for (std::string& sentence : found) sentence = concat("step ", of_rank[0]->kind, ": ", sentence);
  return found;
}

Sentences collective_faults(const Mesh& mesh, const std::vector<const Plan*>& of_rank) {
  Sentences found;
  std::vector<std::string> kinds;
  for (const Plan* plan : of_rank)
    for (const Program& program : plan->programs)
      if (std::find(kinds.begin(), kinds.end(), program.kind) == kinds.end()) kinds.push_back(program.kind);
  for (const std::string& kind : kinds) {
    std::vector<const Program*> programs;
    for (const Plan* plan : of_rank) programs.push_back(plan->find(kind));
    const auto without = std::find(programs.begin(), programs.end(), nullptr);
    if (without != programs.end())
      found.push_back(concat("rank ", without - programs.begin(), " plans no step ", kind, ", which others plan"));
    else
      for (std::string& sentence : collective_faults(mesh, programs)) found.push_back(std::move(sentence));
  }
  return found;
}

} // namespace triax
