// Checks on recorded programs, and the packing of all of a run's programs into one arena.
#include "kernels/program.h"
#include <algorithm>
#include <map>
#include <numeric>

namespace triax {
namespace {

using What = Instruction::What;
constexpr size_t kMaxFaults = 8; // enough to see a pattern

/// One operand's touch of a buffer. `operand` -1 is the workspace.
struct Touch {
  int32_t instruction, operand;
  int32_t ordinal; ///< of the operation on its stream, from 1
  StreamId stream;
  bool reads, writes;
};

/// Calls visit(buffer, touch) in the order of issue; a persistent buffer is ~index.
template <class Visit> void each_touch(const Program& p, Visit visit) {
  std::array<int32_t, kStreams> ordinal{};
  for (size_t n = 0; n < p.instructions.size(); ++n) {
    const Instruction& at = p.instructions[n];
    if (at.what != What::op) continue;
    const int32_t number = ++ordinal[int(at.stream)];
    const Op& op = p.signatures[at.index].op;
    for (int i = 0; i < op.operand_count; ++i) {
      const Access access = op.operands[i].access;
      if (op.has(i))
        visit(p.references[at.reference + i].buffer,
              Touch{int32_t(n), i, number, at.stream, access != Access::write, access != Access::read});
    }
    if (at.scratch >= 0) visit(at.scratch, Touch{int32_t(n), -1, number, at.stream, false, true});
  }
}

/// All touches by buffer, in the order of issue: transient buffers first, persistent ones behind.
std::vector<std::vector<Touch>> touches_of(const Program& p, size_t persistent) {
  std::vector<std::vector<Touch>> touches(p.buffers.size() + persistent);
  each_touch(
      p, [&](int32_t b, const Touch& t) { touches[b >= 0 ? size_t(b) : p.buffers.size() + size_t(~b)].push_back(t); });
  return touches;
}

/// When a transient buffer is used: its last touch on each stream, and what surely lies before each of its touches.
struct Lifetime {
  Clock last{}; ///< ordinal of the last touch on each stream, 0 if none
  Clock before; ///< all touches are preceded by the operations of stream s numbered <= before[s]
  int32_t first_instruction = -1, last_instruction = -1;
  Lifetime() { before.fill(INT32_MAX); }
  bool used() const { return first_instruction >= 0; }
  bool precedes(const Lifetime& later) const {
    for (int s = 0; s < kStreams; ++s)
      if (last[s] > later.before[s]) return false;
    return true;
  }
  bool meets(const Lifetime& other) const { return !precedes(other) && !other.precedes(*this); }
};

std::vector<Lifetime> lifetimes_of(const Program& p, const std::vector<Clock>& clocks) {
  std::vector<Lifetime> lives(p.buffers.size());
  each_touch(p, [&](int32_t b, const Touch& t) {
    if (b < 0) return;
    Lifetime& life = lives[b];
    Clock clock = clocks[t.instruction];
    --clock[int(t.stream)]; // the operation itself is not before itself
    for (int s = 0; s < kStreams; ++s) life.before[s] = std::min(life.before[s], clock[s]);
    life.last[int(t.stream)] = t.ordinal;
    if (!life.used()) life.first_instruction = t.instruction;
    life.last_instruction = t.instruction;
  });
  return lives;
}

/// [begin, end), of instructions or of bytes.
struct Interval {
  int64_t begin = 0, end = 0;
};

/// For each buffer, instructions such that two lifetimes can meet only where these intervals do: from the first
/// operation that is not surely before the buffer, to its last touch. If Y does not precede X, its last touch on some
/// stream is numbered above X.before there, so it is issued no earlier than X's interval begins. Exact where one stream
/// touches all transient buffers. Empty for an unused buffer.
std::vector<Interval> windows_of(const Program& p, const std::vector<Lifetime>& lives) {
  std::array<bool, kStreams> counts{};
  for (const Lifetime& life : lives)
    for (int s = 0; s < kStreams; ++s) counts[s] = counts[s] || life.last[s];
  std::array<std::vector<int32_t>, kStreams> operations; // by ordinal - 1: the instruction
  for (size_t n = 0; n < p.instructions.size(); ++n)
    if (const Instruction& at = p.instructions[n]; at.what == What::op && counts[int(at.stream)])
      operations[int(at.stream)].push_back(int32_t(n));
  std::vector<Interval> windows(lives.size());
  for (size_t b = 0; b < lives.size(); ++b) {
    const Lifetime& life = lives[b];
    if (!life.used()) continue;
    windows[b] = {life.first_instruction, life.last_instruction + 1};
    for (int s = 0; s < kStreams; ++s)
      if (size_t(life.before[s]) < operations[s].size())
        windows[b].begin = std::min<int64_t>(windows[b].begin, operations[s][life.before[s]]);
  }
  return windows;
}

/// A set of intervals, out of a list that is known from the start, that finds those which meet a given one: a tree of
/// the latest ends over the intervals in the order of their begins.
class Intervals {
public:
  explicit Intervals(const std::vector<Interval>& all) : all_(all), order_(all.size()), place_(all.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) { return all[a].begin < all[b].begin; });
    for (size_t i = 0; i < order_.size(); ++i) place_[order_[i]] = i;
    while (leaves_ < all.size()) leaves_ *= 2;
    latest_.assign(2 * leaves_, kNone);
  }
  void add(int32_t i) { set(i, all_[i].end); }
  void remove(int32_t i) { set(i, kNone); }
  /// Calls visit(index) for each interval of the set that shares a point with `one`.
  template <class Visit> void meeting(const Interval& one, Visit visit) const {
    const auto later =
        std::partition_point(order_.begin(), order_.end(), [&](int32_t i) { return all_[i].begin < one.end; });
    descend(1, 0, leaves_, size_t(later - order_.begin()), one.begin, visit);
  }

private:
  static constexpr int64_t kNone = INT64_MIN;
  void set(int32_t i, int64_t end) {
    size_t node = leaves_ + place_[i];
    for (latest_[node] = end; node /= 2;) latest_[node] = std::max(latest_[2 * node], latest_[2 * node + 1]);
  }
  template <class Visit>
  void descend(size_t node, size_t first, size_t width, size_t stop, int64_t begin, Visit& visit) const {
    if (first >= stop || latest_[node] <= begin) return;
    if (width == 1) return visit(order_[first]);
    descend(2 * node, first, width / 2, stop, begin, visit);
    descend(2 * node + 1, first + width / 2, width / 2, stop, begin, visit);
  }
  const std::vector<Interval>& all_;
  std::vector<int32_t> order_;
  std::vector<size_t> place_;
  size_t leaves_ = 1;
  std::vector<int64_t> latest_; ///< a binary heap's layout, the leaves behind
};

/// Used buffers in the order of `key`, ties by index.
template <class Key> std::vector<int32_t> used_by(const std::vector<Lifetime>& lives, Key key) {
  std::vector<int32_t> order;
  for (size_t b = 0; b < lives.size(); ++b)
    if (lives[b].used()) order.push_back(int32_t(b));
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  return order;
}

bool same_bytes(const Program& p, const Touch& x, const Touch& y) {
  if (x.operand < 0 || y.operand < 0) return true;
  const auto place = [&](const Touch& t) {
    const Instruction& at = p.instructions[t.instruction];
    Tensor tensor = p.signatures[at.index].op[t.operand];
    tensor.address = uint64_t(p.references[at.reference + t.operand].offset);
    return tensor;
  };
  return overlap(place(x), place(y));
}

/// Races among one buffer's touches. Of another stream's touches, in their order, those up to x's clock are before x
/// and those whose clock has reached x are after it; only what lies between is looked at.
void find_races(const Program& p, const Buffer& buffer, const std::vector<Touch>& touches,
                const std::vector<Clock>& clocks, std::vector<std::string>& found) {
  std::array<std::vector<Touch>, kStreams> by_stream;
  for (const Touch& t : touches) by_stream[int(t.stream)].push_back(t);
  for (int s = 0; s < kStreams; ++s)
    for (int other = s + 1; other < kStreams; ++other)
      for (const Touch& x : by_stream[s]) {
        const auto& list = by_stream[other];
        const auto first = std::partition_point(
            list.begin(), list.end(), [&](const Touch& y) { return y.ordinal <= clocks[x.instruction][other]; });
        const auto last = std::partition_point(first, list.end(),
                                               [&](const Touch& y) { return clocks[y.instruction][s] < x.ordinal; });
        const auto y =
            std::find_if(first, last, [&](const Touch& t) { return (x.writes || t.writes) && same_bytes(p, x, t); });
        if (y == last) continue;
        const auto [early, late] = std::minmax(x.instruction, y->instruction);
        found.push_back(concat("step ", p.kind, ": ", p.describe(size_t(early)), " and ", p.describe(size_t(late)),
                               " touch the same bytes of ", buffer.name, ", one writes, and no event orders them"));
        if (found.size() >= kMaxFaults) return;
      }
}

void find_races(const Program& p, const std::vector<Buffer>& persistent, const std::vector<Clock>& clocks,
                std::vector<std::string>& found) {
  const auto touches = touches_of(p, persistent.size());
  for (size_t b = 0; b < touches.size() && found.size() < kMaxFaults; ++b) {
    const bool transient = b < p.buffers.size();
    const Buffer& buffer = transient ? p.buffers[b] : persistent[b - p.buffers.size()];
    const auto& list = touches[b];
    if (transient && !list.empty() && list[0].reads)
      found.push_back(concat("step ", p.kind, ": ", p.describe(size_t(list[0].instruction)), " reads ", buffer.name,
                             " before anything is written to it"));
    if (std::any_of(list.begin(), list.end(), [&](const Touch& t) { return t.stream != list[0].stream; }))
      find_races(p, buffer, list, clocks, found);
  }
}

void find_bad_reuse(const Program& p, const std::vector<Buffer>& persistent, const std::vector<Clock>& clocks,
                    std::vector<std::string>& found) {
  std::array<int64_t, kSpaces> floor{};
  for (const Buffer& b : persistent) floor[int(b.space)] = std::max(floor[int(b.space)], b.offset + b.bytes);
  std::vector<Interval> bytes(p.buffers.size());
  for (size_t b = 0; b < bytes.size(); ++b) {
    const Buffer& buffer = p.buffers[b];
    if (buffer.offset < 0) continue; // not packed yet
    bytes[b] = {buffer.offset, buffer.offset + buffer.bytes};
    if (buffer.offset < floor[int(buffer.space)] && found.size() < kMaxFaults)
      found.push_back(concat("step ", p.kind, ": ", buffer.name, " lies over persistent bytes"));
  }
  const auto lives = lifetimes_of(p, clocks);
  const auto windows = windows_of(p, lives);
  const auto starts = used_by(lives, [&](int32_t b) { return windows[b].begin; });
  const auto ends = used_by(lives, [&](int32_t b) { return windows[b].end; });
  auto ended = ends.begin();
  Intervals open(bytes); // buffers whose window has begun and not ended
  for (int32_t b : starts) {
    for (; windows[*ended].end <= windows[b].begin; ++ended) open.remove(*ended);
    open.meeting(bytes[b], [&](int32_t other) {
      if (!lives[b].meets(lives[other]) || found.size() >= kMaxFaults) return;
      const auto [x, y] = std::minmax(b, other);
      found.push_back(concat("step ", p.kind, ": ", p.buffers[x].name, " and ", p.buffers[y].name,
                             " share arena bytes from ", std::max(bytes[x].begin, bytes[y].begin),
                             " without an order between their uses (", p.describe(size_t(lives[x].first_instruction)),
                             ", ", p.describe(size_t(lives[y].first_instruction)), ")"));
    });
    open.add(b);
  }
}

/// What decides how buffers are placed among each other: their sizes, and their lifetimes counted from the first.
std::vector<int64_t> shape_of(const Program& p, const std::vector<Lifetime>& lives, const std::vector<int32_t>& group) {
  Clock base;
  base.fill(INT32_MAX);
  for (int32_t b : group)
    for (int s = 0; s < kStreams; ++s) base[s] = std::min(base[s], lives[b].before[s]);
  std::vector<int64_t> shape;
  for (int32_t b : group) {
    shape.push_back(p.buffers[b].bytes);
    for (int s = 0; s < kStreams; ++s) {
      shape.push_back(lives[b].before[s] - base[s]);
      shape.push_back(lives[b].last[s] ? lives[b].last[s] - base[s] : 0);
    }
  }
  return shape;
}

/// Largest first, each at the lowest gap that fits between the placed buffers it meets.
std::vector<int64_t> place(const Program& p, const std::vector<Lifetime>& lives, const std::vector<Interval>& windows,
                           const std::vector<int32_t>& group) {
  const auto bytes = [&](int32_t i) { return p.buffers[group[i]].bytes; };
  std::vector<int32_t> order(group.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return bytes(a) > bytes(b); });
  std::vector<Interval> windows_here, taken;
  for (int32_t b : group) windows_here.push_back(windows[b]);
  Intervals placed(windows_here);
  std::vector<int64_t> offset(group.size());
  for (int32_t i : order) {
    taken.clear();
    placed.meeting(windows_here[i], [&](int32_t j) {
      if (lives[group[i]].meets(lives[group[j]])) taken.push_back({offset[j], offset[j] + bytes(j)});
    });
    std::sort(taken.begin(), taken.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    for (const Interval& t : taken) {
      if (t.begin - offset[i] >= bytes(i)) break;
      offset[i] = std::max(offset[i], t.end);
    }
    placed.add(i);
  }
  return offset;
}

/// Sets the offsets from `floor` and returns where they end. Groups of buffers that meet nobody outside (micro-batches)
/// are placed each on its own, and those of one shape once.
int64_t place(Program& p, int64_t floor) {
  const auto lives = lifetimes_of(p, p.clocks());
  const auto windows = windows_of(p, lives);
  std::vector<std::vector<int32_t>> groups;
  int64_t end = 0;
  for (int32_t b : used_by(lives, [&](int32_t b) { return windows[b].begin; })) {
    if (groups.empty() || windows[b].begin >= end) groups.emplace_back();
    groups.back().push_back(b);
    end = std::max(end, windows[b].end);
  }
  for (Buffer& b : p.buffers) b.offset = floor; // where an unused one stays
  std::map<std::vector<int64_t>, std::vector<int64_t>> known;
  for (std::vector<int32_t>& group : groups) {
    std::sort(group.begin(), group.end());
    std::vector<int64_t>& offsets = known[shape_of(p, lives, group)];
    if (offsets.empty()) offsets = place(p, lives, windows, group);
    for (size_t i = 0; i < group.size(); ++i) p.buffers[group[i]].offset += offsets[i];
  }
  int64_t top = floor;
  for (const Buffer& b : p.buffers) top = std::max(top, b.offset + b.bytes);
  return top;
}

void hash_instructions(Program& p, const std::vector<Buffer>& persistent) {
  p.hashes.clear();
  for (const Instruction& at : p.instructions) {
    if (at.what != What::op) {
      const bool sized = at.what == What::allocate;
      p.hashes.push_back(hash_of(at.what, at.stream, sized ? p.buffers[at.index].bytes : at.index));
      continue;
    }
    Op op = p.signatures[at.index].op;
    for (int i = 0; i < op.operand_count; ++i) op.operands[i].tensor = p.operand(at, i, persistent);
    p.hashes.push_back(hash_of(op, at.stream, {}));
  }
}

} // namespace

std::vector<std::string> faults(const Program& program, const std::vector<Buffer>& persistent) {
  std::vector<std::string> found;
  const auto clocks = program.clocks();
  find_races(program, persistent, clocks, found);
  find_bad_reuse(program, persistent, clocks, found);
  return found;
}

Plan pack(const Target& target, std::vector<Buffer> persistent, std::vector<Program> programs) {
  Plan plan{target, std::move(persistent), std::move(programs), {}};
  for (Buffer& b : plan.persistent) {
    b.offset = plan.bytes[int(b.space)];
    plan.bytes[int(b.space)] += b.bytes;
  }
  const int64_t floor = plan.bytes[int(Space::device)];
  for (Program& p : plan.programs) {
    plan.bytes[int(Space::device)] = std::max(plan.bytes[int(Space::device)], place(p, floor));
    hash_instructions(p, plan.persistent);
    std::string sentences;
    for (const std::string& fault : faults(p, plan.persistent)) sentences += "\n  " + fault;
    ENSURE(sentences.empty(), "the recorded step is not safe:", sentences);
  }
  return plan;
}

Plan::Peak Plan::peak(Space space) const {
  Peak best;
  for (const Buffer& b : persistent)
    if (b.space == space) best.bytes[int(b.purpose)] += b.bytes, best.total += b.bytes;
  const Peak base = best;
  for (const Program& p : programs) {
    const auto lives = lifetimes_of(p, p.clocks());
    const auto starts = used_by(lives, [&](int32_t b) { return lives[b].first_instruction; });
    const auto ends = used_by(lives, [&](int32_t b) { return lives[b].last_instruction; });
    auto ended = ends.begin();
    Peak now = base;
    const auto count = [&](int32_t b, int64_t sign) {
      if (p.buffers[b].space != space) return;
      now.bytes[int(p.buffers[b].purpose)] += sign * p.buffers[b].bytes;
      now.total += sign * p.buffers[b].bytes;
    };
    int32_t moment = -1;
    for (int32_t b : starts) {
      for (; lives[*ended].last_instruction < lives[b].first_instruction; ++ended) count(*ended, -1);
      count(b, 1);
      if (now.total <= best.total) continue;
      best = now;
      moment = lives[b].first_instruction;
    }
    if (moment >= 0) best.program = p.kind, best.instruction = p.describe(size_t(moment));
  }
  return best;
}

} // namespace triax
