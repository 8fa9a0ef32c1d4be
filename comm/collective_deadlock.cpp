#include "comm/collective_deadlock.h"
#include <algorithm>
#include <compare>
#include <map>
#include <optional>
#include <set>

namespace triax {
namespace {

constexpr size_t kMostShown = 6; ///< ranks of a cycle

/// By group: the distinct roles of its ranks, ascending.
std::map<int, std::vector<int>> roles_of_groups(const RankGrid& grid, Axes axes, const std::vector<int>& role) {
  std::map<int, std::vector<int>> groups;
  std::vector<std::pair<int, int>> pairs;
  for (int rank = 0; rank < grid.ranks(); ++rank) pairs.emplace_back(grid.group_of(rank, axes), role[size_t(rank)]);
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  for (const auto& [group, r] : pairs) groups[group].push_back(r);
  return groups;
}

} // namespace

Roles::Roles(const Traces& traces) : of_rank(traces.trace_of) {
  const RankGrid& grid = traces.grid;
  // Ranks are told apart until all of a role meet the same roles: at first by program, then by whom they met so far.
  for (size_t roles = traces.traces.size();; roles = example.size()) {
    std::vector<std::vector<int>> seen(of_rank.size());
    for (size_t rank = 0; rank < seen.size(); ++rank) seen[rank].push_back(of_rank[rank]);
    blocks.clear();
    block_of.assign(traces.kinds.size(), std::vector<int>(roles));
    std::map<std::vector<int>, int> block_numbers, role_numbers;
    for (size_t kind = 0; kind < traces.kinds.size(); ++kind) {
      block_numbers.clear();
      const auto groups = roles_of_groups(grid, traces.kinds[kind], of_rank);
      for (size_t rank = 0; rank < seen.size(); ++rank) {
        const std::vector<int>& met = groups.at(grid.group_of(int(rank), traces.kinds[kind]));
        const auto [at, is_new] = block_numbers.emplace(met, int(blocks.size()));
        if (is_new) blocks.push_back(met);
        seen[rank].push_back(at->second);
        block_of[kind][size_t(of_rank[rank])] = at->second;
      }
    }
    example.clear();
    for (size_t rank = 0; rank < seen.size(); ++rank) {
      const auto [at, is_new] = role_numbers.emplace(seen[rank], int(example.size()));
      if (is_new) example.push_back(int(rank));
      seen[rank] = {at->second};
    }
    if (example.size() == roles) return; // nothing was told apart: of_rank, blocks and block_of belong together
    for (size_t rank = 0; rank < seen.size(); ++rank) of_rank[rank] = seen[rank][0];
  }
}

namespace {

/// How far the ranks of a role are.
struct Progress {
  std::array<size_t, kStreams> head{}; ///< of each queue: steps that are done
  std::vector<bool> recorded;          ///< events
  int32_t turn = 0;                    ///< collectives done
  std::vector<int32_t> entered;        ///< by kind of communicator: collectives
};

class Play {
public:
  Play(const Traces& traces, const Roles& roles, Semantics semantics);
  bool ends(); ///< plays as far as it goes
  std::string cycle() const;

private:
  /// A collective that a rank has not done.
  struct Point {
    int rank;
    int32_t collective;
    auto operator<=>(const Point&) const = default;
  };
  const Trace& trace_of(int role) const { return traces_.of(roles_.example[size_t(role)]); }
  int block_of(int role, int32_t kind) const { return roles_.block_of[size_t(kind)][size_t(role)]; }
  void advance(int role);
  bool step(int role, const TracedStep& step);
  bool enter(int role, int32_t collective);
  std::optional<Point> first_undone() const;
  int32_t blocking(int role, StreamId stream) const;
  Point waits_for(const Point& at) const;
  std::string last_matched(const Point& at) const;

  const Traces& traces_;
  const Roles& roles_;
  const Semantics semantics_;
  std::vector<Progress> progress_; ///< by role
  std::vector<int32_t> done_;      ///< by block: collectives
  std::vector<size_t> entered_;    ///< by block: roles that are in the next one
  std::vector<int> to_advance_;    ///< roles
};

Play::Play(const Traces& traces, const Roles& roles, Semantics semantics)
    : traces_(traces), roles_(roles), semantics_(semantics), progress_(roles.example.size()),
      done_(roles.blocks.size()), entered_(roles.blocks.size()) {
  for (size_t role = 0; role < progress_.size(); ++role) {
    progress_[role].recorded.resize(size_t(trace_of(int(role)).program->events));
    progress_[role].entered.resize(traces.kinds.size());
    to_advance_.push_back(int(role));
  }
}

bool Play::ends() {
  while (!to_advance_.empty()) {
    const int role = to_advance_.back();
    to_advance_.pop_back();
    advance(role);
  }
  return !first_undone();
}

void Play::advance(int role) {
  Progress& progress = progress_[size_t(role)];
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < kStreams; ++s) {
      const std::vector<TracedStep>& queue = trace_of(role).queues[s];
      for (size_t& head = progress.head[s]; head < queue.size() && step(role, queue[head]); ++head) moved = true;
    }
  }
}

/// Is the step, at the head of its queue, done?
bool Play::step(int role, const TracedStep& step) {
  std::vector<bool>& recorded = progress_[size_t(role)].recorded;
  if (step.what == TracedStep::What::record) recorded[size_t(step.index)] = true;
  if (step.what != TracedStep::What::collective) return recorded[size_t(step.index)];
  return enter(role, step.index);
}

bool Play::enter(int role, int32_t collective) {
  Progress& progress = progress_[size_t(role)];
  const TracedCollective& c = trace_of(role).collectives[size_t(collective)];
  const size_t block = size_t(block_of(role, c.kind));
  if (progress.entered[size_t(c.kind)] == c.nth) {
    if (semantics_ == Semantics::one_at_a_time && progress.turn != collective) return false;
    ++progress.entered[size_t(c.kind)];
    if (++entered_[block] == roles_.blocks[block].size()) { // all are in
      entered_[block] = 0;
      ++done_[block];
      for (int other : roles_.blocks[block])
        if (other != role) to_advance_.push_back(other);
    }
  }
  if (done_[block] <= c.nth) return false;
  ++progress.turn;
  return true;
}

std::optional<Play::Point> Play::first_undone() const {
  for (size_t role = 0; role < progress_.size(); ++role)
    for (size_t s = 0; s < kStreams; ++s)
      if (progress_[role].head[s] < trace_of(int(role)).queues[s].size())
        return Point{roles_.example[role], blocking(int(role), StreamId(s))};
  return {};
}

/// The collective that keeps a stream from going on: at its head, or at that of a stream whose event it waits for.
int32_t Play::blocking(int role, StreamId stream) const {
  for (size_t s = size_t(stream);;) {
    const TracedStep& head = trace_of(role).queues[s].at(progress_[size_t(role)].head[s]);
    if (head.what == TracedStep::What::collective) return head.index;
    size_t recorder = 0; // an event is recorded before it is waited for, so this comes to an end
    const auto records = [&](const TracedStep& t) {
      return t.what == TracedStep::What::record && t.index == head.index;
    };
    while (recorder < kStreams &&
           std::none_of(trace_of(role).queues[recorder].begin(), trace_of(role).queues[recorder].end(), records))
      ++recorder;
    ENSURE(recorder < kStreams, "event ", head.index, " is waited for and not recorded");
    s = recorder;
  }
}

Play::Point Play::waits_for(const Point& at) const {
  const int role = roles_.of_rank[size_t(at.rank)];
  const TracedCollective& c = trace_of(role).collectives[size_t(at.collective)];
  const Progress& progress = progress_[size_t(role)];
  if (progress.entered[size_t(c.kind)] <= c.nth) { // not there yet: behind another one of this rank
    const int32_t other = blocking(role, c.stream);
    return {at.rank, other == at.collective ? progress.turn : other};
  }
  for (int rank : traces_.grid.members(at.rank, traces_.kinds[size_t(c.kind)])) {
    const int other = roles_.of_rank[size_t(rank)];
    if (progress_[size_t(other)].entered[size_t(c.kind)] <= c.nth)
      return {rank, trace_of(other).of_kind[size_t(c.kind)][size_t(c.nth)]};
  }
  fail(concat("all ranks are in ", trace_of(role).describe(c), ", and it is not done"));
}

std::string Play::last_matched(const Point& at) const {
  const Trace& trace = traces_.of(at.rank);
  const TracedCollective& c = trace.collectives[size_t(at.collective)];
  if (c.nth == 0) return concat("none of ", trace.axes(c).name());
  const int32_t before = trace.of_kind[size_t(c.kind)][size_t(c.nth) - 1];
  return concat(trace.axes(c).name(), " ", trace.describe(trace.collectives[size_t(before)]));
}

std::string Play::cycle() const {
  std::vector<Point> path{*first_undone()};
  std::set<Point> seen;
  while (seen.insert(path.back()).second) path.push_back(waits_for(path.back()));
  const Point closes = path.back();
  path.pop_back();
  path.erase(path.begin(), std::find(path.begin(), path.end(), closes));
  std::vector<std::string> stands, matched;
  for (size_t i = 0; i < path.size(); ++i) {
    const Point& at = path[i];
    const Point& next = path[(i + 1) % path.size()];
    if (at.rank == next.rank) continue; // it is not in this one yet
    const Trace& trace = traces_.of(at.rank);
    const TracedCollective& c = trace.collectives[size_t(at.collective)];
    stands.push_back(concat("rank ", at.rank, " is in ", trace.axes(c).name(), " (",
                            ranks_text(traces_.grid.members(at.rank, traces_.kinds[size_t(c.kind)])), ") ",
                            trace.describe(c), " until rank ", next.rank, " enters it"));
    if (const std::string last = last_matched(at); std::find(matched.begin(), matched.end(), last) == matched.end())
      matched.push_back(last);
  }
  std::string text;
  for (size_t i = 0; i < std::min(stands.size(), kMostShown); ++i) text += (i ? "; " : "") + stands[i];
  if (stands.size() > kMostShown) text += concat("; and so on, ", stands.size(), " ranks in all");
  return concat(text, "; matched last: ", listed(matched, kMostShown));
}

} // namespace

std::string find_deadlock(const Traces& traces, const Roles& roles, Semantics semantics) {
  Play play(traces, roles, semantics);
  if (play.ends()) return "";
  return concat("deadlock ",
                semantics == Semantics::independent_streams
                    ? "on independent streams"
                    : "where a device does one collective at a time in the order of issue (NCCL), not on independent "
                      "streams",
                ": ", play.cycle());
}

} // namespace triax
