// Packing and checks of recorded programs, held to what looking at every pair of touches says.
#include "kernels/device.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <random>

using namespace triax;

namespace {

using What = Instruction::What;

/// Described alone, so for ghosts.
const OpKind kTouch{"touch", [](const Target&, const Op&) { return Description{}; }};
Op touch(const Tensor& t) { return Op(kTouch).write(t); }
Op look(const Tensor& t) { return Op(kTouch).read(t); }

/// Operations and events at random on all three streams, over 1024 persistent bytes and short-lived buffers; `waits` is
/// how often a stream waits for an event. Without races, each stream has its own bytes of each buffer.
Program random_program(std::mt19937& random, double waits, bool races) {
  const auto up_to = [&](int n) { return int(random() % uint32_t(n)); };
  Program p;
  p.kind = "random";
  const Tensor t = Tensor::dense(0, Space::device, Dtype::u8, {256});
  p.signatures = {{look(t), {}}, {touch(t), {}}};
  for (int n = 0, steps = 4 + up_to(100); n < steps; ++n) {
    const StreamId stream = StreamId(up_to(3));
    if (!p.buffers.empty() && double(random() % 1000) < 1000 * waits) {
      const StreamId from = StreamId(up_to(3));
      p.instructions.push_back({What::record, from, p.events});
      p.instructions.push_back({What::wait, stream, p.events++});
      continue;
    }
    const bool fresh = p.buffers.empty() || up_to(3) == 0;
    if (fresh) p.buffers.push_back({concat("b", p.buffers.size()), {}, {}, kAlignment * (kStreams + up_to(5))});
    const int recent = std::max(0, int(p.buffers.size()) - 1 - (fresh ? 0 : up_to(6)));
    const bool transient = fresh || !races || up_to(3) > 0;
    const bool writes = fresh || up_to(2);
    p.instructions.push_back({What::op, stream, int32_t(writes), int32_t(p.references.size())});
    p.references.push_back(transient ? Reference{recent, races ? 0 : 256 * int(stream)}
                                     : Reference{~0, 64 * up_to(13)});
    if (fresh && races && up_to(4) == 0) p.instructions.back().scratch = recent;
  }
  return p;
}

/// Which operations precede which, by following every edge: the order of each stream, and from each record to the waits
/// for it.
std::vector<std::vector<bool>> reachable(const Program& p) {
  const size_t n = p.instructions.size();
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n)); // [later][earlier]
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < i; ++j) {
      const Instruction &a = p.instructions[j], &b = p.instructions[i];
      if (a.stream != b.stream && !(a.what == What::record && b.what == What::wait && a.index == b.index)) continue;
      before[i][j] = true;
      for (size_t k = 0; k < j; ++k) before[i][k] = before[i][k] || before[j][k];
    }
  return before;
}

/// What the checks and the packing are held to: every pair of touches, one by one.
struct Pairs {
  std::vector<std::vector<bool>> unordered; ///< [a][b]: neither all of a before b nor all of b before a
  std::vector<std::pair<int, int>> races;   ///< instructions, the earlier first
};

Pairs all_pairs(const Program& p) {
  const auto before = reachable(p);
  struct Use {
    int instruction, buffer;
    int64_t begin, end;
    bool writes;
  };
  std::vector<Use> uses;
  for (size_t n = 0; n < p.instructions.size(); ++n) {
    const Instruction& at = p.instructions[n];
    if (at.what != What::op) continue;
    const Reference r = p.references[at.reference];
    uses.push_back({int(n), r.buffer, r.offset, r.offset + 256, at.index == 1});
    if (at.scratch >= 0) uses.push_back({int(n), at.scratch, 0, 1 << 20, true});
  }
  const size_t buffers = p.buffers.size();
  std::vector<std::vector<bool>> late(buffers, std::vector<bool>(buffers)); // [a][b]: some of a is not before some of b
  Pairs pairs{late, {}};
  for (const Use& x : uses)
    for (const Use& y : uses) {
      const bool ordered = before[y.instruction][x.instruction];
      if (x.buffer >= 0 && y.buffer >= 0 && !ordered) late[x.buffer][y.buffer] = true;
      if (x.instruction < y.instruction && !ordered && x.buffer == y.buffer && (x.writes || y.writes) &&
          x.begin < y.end && y.begin < x.end)
        pairs.races.emplace_back(x.instruction, y.instruction);
    }
  for (size_t a = 0; a < buffers; ++a)
    for (size_t b = 0; b < buffers; ++b) pairs.unordered[a][b] = a != b && late[a][b] && late[b][a];
  return pairs;
}

/// Largest first, each at the lowest free place: as `pack` promises.
std::vector<int64_t> packed_by_pairs(const Program& p, const Pairs& pairs, int64_t floor) {
  std::vector<size_t> order(p.buffers.size()), placed;
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return p.buffers[a].bytes > p.buffers[b].bytes; });
  std::vector<int64_t> offset(order.size(), floor);
  for (size_t b : order) {
    const auto clash = [&](size_t other) {
      return pairs.unordered[b][other] && offset[b] < offset[other] + p.buffers[other].bytes &&
             offset[other] < offset[b] + p.buffers[b].bytes;
    };
    while (std::any_of(placed.begin(), placed.end(), clash)) offset[b] += kAlignment;
    placed.push_back(b);
  }
  return offset;
}

} // namespace

TEST_SUITE("kernels_plan") {

  TEST_CASE("races are those that looking at every pair of touches finds") {
    std::mt19937 random(1);
    int racy = 0, clean = 0;
    for (int round = 0; round < 600; ++round) {
      const Program p = random_program(random, round % 3 * 0.35, true);
      const Pairs pairs = all_pairs(p);
      const auto found = faults(p, {{"weights", {}, {}, 1024, 0}});
      CHECK(found.empty() == pairs.races.empty());
      for (const std::string& sentence : found)
        CHECK(std::any_of(pairs.races.begin(), pairs.races.end(), [&](const auto& race) {
          return sentence.find(concat(p.describe(size_t(race.first)), " and ", p.describe(size_t(race.second)))) !=
                 std::string::npos;
        }));
      ++(found.empty() ? clean : racy);
    }
    CHECK(racy > 50);
    CHECK(clean > 50);
  }

  TEST_CASE("reuse of bytes is refused, and packed, as looking at every pair of buffers does") {
    std::mt19937 random(2);
    int shared = 0, bad = 0;
    for (int round = 0; round < 600; ++round) {
      const Program recorded = random_program(random, round % 3 * 0.35, false);
      const Pairs pairs = all_pairs(recorded);
      CHECK(pairs.races.empty());
      const Plan plan = pack({}, {{"weights", {}, {}, 1024, 0}}, {recorded});
      Program p = plan.programs[0];
      const auto expected = packed_by_pairs(p, pairs, 1024);
      for (size_t b = 0; b < expected.size(); ++b) CHECK(p.buffers[b].offset == expected[b]);
      const size_t moved = random() % p.buffers.size(); // to anywhere
      p.buffers[moved].offset = 1024 + kAlignment * int64_t(random() % 8);
      bool clash = false;
      for (size_t b = 0; b < p.buffers.size(); ++b) {
        const bool meet = p.buffers[b].offset < p.buffers[moved].offset + p.buffers[moved].bytes &&
                          p.buffers[moved].offset < p.buffers[b].offset + p.buffers[b].bytes && b != moved;
        shared += meet;
        clash = clash || (meet && pairs.unordered[b][moved]);
      }
      CHECK(faults(p, plan.persistent).empty() != clash);
      bad += clash;
    }
    CHECK(bad > 50);
    CHECK(shared > bad + 50);
  }

  TEST_CASE("micro-batches are placed alike, and planning them takes time in proportion") {
    const int rounds = 2000, width = 40; // pair by pair, this would take minutes
    const auto device = Device::ghost({});
    const Tensor weights = device->persistent("weights", Purpose::weights, Dtype::f32, {64});
    Stream compute = device->compute(), communication = device->communication();
    device->begin("step");
    for (int round = 0; round < rounds; ++round) {
      std::vector<Allocation> kept;
      for (int i = 0; i < width; ++i) {
        kept.push_back(device->allocate("kept", Purpose::activations, Dtype::f32, {64 * (1 + i * 7 % 5)}));
        compute.run(touch(kept.back()));
      }
      for (; !kept.empty(); kept.pop_back()) compute.run(look(kept.back()));
      communication.wait(compute.record());
      communication.run(touch(weights));
    }
    device->end();
    const Plan plan = device->plan();
    const Program& p = plan.programs[0];
    REQUIRE(p.buffers.size() == size_t(rounds * width));
    bool alike = true;
    for (size_t b = width; b < p.buffers.size(); ++b)
      alike = alike && p.buffers[b].offset == p.buffers[b - width].offset;
    CHECK(alike);
    CHECK(plan.peak(Space::device).total == plan.bytes[int(Space::device)]);
  }

  TEST_CASE("micro-batches of the same sizes but other lifetimes are not taken for alike") {
    const auto device = Device::ghost({});
    device->begin("step");
    for (const std::string uses : {"0120", "01210", "00210"}) { // buffers, in the order of their uses
      std::vector<Allocation> buffers;
      for (int i = 0; i < 3; ++i) buffers.push_back(device->allocate("buffer", Purpose::activations, Dtype::f32, {64}));
      for (const char which : uses) device->compute().run(touch(buffers[size_t(which - '0')]));
    }
    device->end();
    const Plan plan = device->plan();
    const std::vector<Buffer>& b = plan.programs[0].buffers;
    CHECK(b[1].offset == b[2].offset);
    CHECK(b[4].offset != b[5].offset);
    CHECK(b[7].offset == b[8].offset);
  }

} // TEST_SUITE
