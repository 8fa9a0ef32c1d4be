// Checks on recorded programs, and the packing of all of a run's programs into one arena.
#include "kernels/program.h"
#include <algorithm>
#include <numeric>

namespace triax {
namespace {

using What = Instruction::What;
constexpr size_t kMaxFaults = 8; // enough to see a pattern

/// One operand's touch of a buffer. `operand` -1 is the workspace.
struct Touch {
  int32_t instruction, operand;
  StreamId stream;
  int32_t ordinal; ///< of the operation on its stream, from 1
  bool reads, writes;
};

/// All touches by buffer: transient first, the given number of persistent ones behind.
std::vector<std::vector<Touch>> touches_of(const Program& p, size_t persistent) {
  std::vector<std::vector<Touch>> touches(p.buffers.size() + persistent);
  std::array<int32_t, kStreams> ordinal{};
  for (size_t n = 0; n < p.instructions.size(); ++n) {
    const Instruction& at = p.instructions[n];
    if (at.what != What::op) continue;
    const int32_t number = ++ordinal[int(at.stream)];
    const Op& op = p.signatures[at.index].op;
    for (int i = 0; i < op.operand_count; ++i) {
      if (op[i].empty()) continue;
      const int32_t b = p.references[at.reference + i].buffer;
      if (b < 0 && persistent == 0) continue;
      const Access access = op.operands[i].access;
      touches[b >= 0 ? size_t(b) : p.buffers.size() + size_t(~b)].push_back(
          {int32_t(n), i, at.stream, number, access != Access::write, access != Access::read});
    }
    if (at.scratch >= 0) touches[at.scratch].push_back({int32_t(n), -1, at.stream, number, false, true});
  }
  return touches;
}

bool ordered(const Touch& a, const Touch& b, const std::vector<Clock>& clocks) {
  return a.stream == b.stream || clocks[b.instruction][int(a.stream)] >= a.ordinal ||
         clocks[a.instruction][int(b.stream)] >= b.ordinal;
}

/// When a buffer is used: its last touch on each stream, and what surely lies before each of its touches.
struct Lifetime {
  Clock last{}; ///< ordinal of the last touch on each stream, 0 if none
  Clock before; ///< all touches are preceded by the operations of stream s numbered <= before[s]
  int32_t first_instruction = -1, last_instruction = -1;
  Lifetime() { before.fill(INT32_MAX); }
  bool precedes(const Lifetime& later) const {
    for (int s = 0; s < kStreams; ++s)
      if (last[s] > later.before[s]) return false;
    return true;
  }
};

std::vector<Lifetime> lifetimes_of(const Program& p, const std::vector<Clock>& clocks) {
  const auto touches = touches_of(p, 0);
  std::vector<Lifetime> lives(p.buffers.size());
  for (size_t b = 0; b < lives.size(); ++b)
    for (const Touch& t : touches[b]) {
      Lifetime& life = lives[b];
      Clock clock = clocks[t.instruction];
      --clock[int(t.stream)]; // the operation itself is not before itself
      for (int s = 0; s < kStreams; ++s) life.before[s] = std::min(life.before[s], clock[s]);
      life.last[int(t.stream)] = std::max(life.last[int(t.stream)], t.ordinal);
      if (life.first_instruction < 0) life.first_instruction = t.instruction;
      life.last_instruction = t.instruction;
    }
  return lives;
}

void find_races(const Program& p, const std::vector<Buffer>& persistent, const std::vector<Clock>& clocks,
                std::vector<std::string>& found) {
  const auto touches = touches_of(p, persistent.size());
  for (size_t b = 0; b < touches.size(); ++b) {
    const bool transient = b < p.buffers.size();
    const Buffer& buffer = transient ? p.buffers[b] : persistent[b - p.buffers.size()];
    const auto& list = touches[b];
    if (transient && !list.empty() && list[0].reads)
      found.push_back(concat("step ", p.kind, ": ", p.describe(size_t(list[0].instruction)), " reads ", buffer.name,
                             " before anything is written to it"));
    for (size_t i = 0; i < list.size() && found.size() < kMaxFaults; ++i)
      for (size_t j = i + 1; j < list.size(); ++j) {
        const Touch &x = list[i], &y = list[j];
        if (ordered(x, y, clocks) || !(x.writes || y.writes)) continue;
        const auto place = [&](const Touch& t) {
          const Instruction& at = p.instructions[t.instruction];
          Tensor tensor = p.signatures[at.index].op[t.operand];
          tensor.address = uint64_t(p.references[at.reference + t.operand].offset);
          return tensor;
        };
        if (x.operand >= 0 && y.operand >= 0 && !overlap(place(x), place(y))) continue;
        found.push_back(concat("step ", p.kind, ": ", p.describe(size_t(x.instruction)), " and ",
                               p.describe(size_t(y.instruction)), " touch the same bytes of ", buffer.name,
                               ", one writes, and no event orders them"));
        break;
      }
  }
}

void find_bad_reuse(const Program& p, const std::vector<Buffer>& persistent, const std::vector<Clock>& clocks,
                    std::vector<std::string>& found) {
  const auto lives = lifetimes_of(p, clocks);
  std::array<int64_t, kSpaces> floor{};
  for (const Buffer& b : persistent) floor[int(b.space)] = std::max(floor[int(b.space)], b.offset + b.bytes);
  std::vector<int32_t> order;
  for (size_t b = 0; b < p.buffers.size(); ++b)
    if (p.buffers[b].offset >= 0) order.push_back(int32_t(b));
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return p.buffers[a].offset < p.buffers[b].offset; });
  for (size_t i = 0; i < order.size() && found.size() < kMaxFaults; ++i) {
    const Buffer& a = p.buffers[order[i]];
    if (a.offset < floor[int(a.space)])
      found.push_back(concat("step ", p.kind, ": ", a.name, " lies over persistent bytes"));
    for (size_t j = i + 1; j < order.size() && p.buffers[order[j]].offset < a.offset + a.bytes; ++j) {
      const Lifetime &x = lives[order[i]], &y = lives[order[j]];
      if (x.first_instruction < 0 || y.first_instruction < 0 || x.precedes(y) || y.precedes(x)) continue;
      const Buffer& b = p.buffers[order[j]];
      found.push_back(concat("step ", p.kind, ": ", a.name, " and ", b.name, " share arena bytes from ", b.offset,
                             " without an order between their uses (", p.describe(size_t(x.first_instruction)), ", ",
                             p.describe(size_t(y.first_instruction)), ")"));
    }
  }
}

/// Largest first, each at the lowest gap that fits between the placed buffers it is not ordered with.
int64_t place(Program& p, int64_t floor) {
  const auto lives = lifetimes_of(p, p.clocks());
  std::vector<int32_t> order(p.buffers.size()), placed;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return p.buffers[a].bytes > p.buffers[b].bytes; });
  int64_t top = floor;
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (int32_t n : order) {
    Buffer& buffer = p.buffers[n];
    taken.clear();
    for (int32_t m : placed)
      if (!lives[n].precedes(lives[m]) && !lives[m].precedes(lives[n]))
        taken.emplace_back(p.buffers[m].offset, p.buffers[m].offset + p.buffers[m].bytes);
    std::sort(taken.begin(), taken.end());
    int64_t at = floor;
    for (const auto& [begin, end] : taken) {
      if (begin - at >= buffer.bytes) break;
      at = std::max(at, end);
    }
    buffer.offset = at;
    top = std::max(top, at + buffer.bytes);
    if (lives[n].first_instruction >= 0) placed.push_back(n);
  }
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
    std::vector<std::vector<int32_t>> starts(p.instructions.size()), ends(p.instructions.size());
    for (size_t b = 0; b < lives.size(); ++b) {
      if (lives[b].first_instruction < 0 || p.buffers[b].space != space) continue;
      starts[lives[b].first_instruction].push_back(int32_t(b));
      ends[lives[b].last_instruction].push_back(int32_t(b));
    }
    Peak now = base;
    for (size_t n = 0; n < p.instructions.size(); ++n) {
      for (int32_t b : starts[n])
        now.bytes[int(p.buffers[b].purpose)] += p.buffers[b].bytes, now.total += p.buffers[b].bytes;
      if (now.total > best.total) {
        best = now;
        best.program = p.kind;
        best.instruction = p.describe(n);
      }
      for (int32_t b : ends[n])
        now.bytes[int(p.buffers[b].purpose)] -= p.buffers[b].bytes, now.total -= p.buffers[b].bytes;
    }
  }
  return best;
}

} // namespace triax
