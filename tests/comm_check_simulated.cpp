// Deadlocks of the collective check, by chance, against a simulation without its symmetries.
#include "tests/collective_recorder.h"
#include <algorithm>
#include <random>

using namespace triax;

namespace {

/// A check of the same meaning without any cleverness: every rank is played, one sweep after another.
class PlainPlay {
public:
  PlainPlay(const MeshShape& shape, const std::vector<const Program*>& of_rank) : of_rank_(of_rank) {
    for (int rank = 0; rank < int(of_rank.size()); ++rank) meshes_.emplace_back(shape, rank, int(of_rank.size()));
  }
  bool ends(bool one_at_a_time) {
    const size_t ranks = of_rank_.size();
    head_.assign(ranks, {});
    recorded_.assign(ranks, std::vector<bool>(1000));
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ranks; ++rank)
        for (int s = 0; s < kStreams; ++s)
          while (step(int(rank), StreamId(s), one_at_a_time)) moved = true;
    }
    for (size_t rank = 0; rank < ranks; ++rank)
      for (int s = 0; s < kStreams; ++s)
        if (at(int(rank), StreamId(s))) return false;
    return true;
  }

private:
  /// The instruction that is the next of a stream; null at the end.
  const Instruction* at(int rank, StreamId stream) {
    const auto& all = of_rank_[size_t(rank)]->instructions;
    size_t& n = head_[size_t(rank)][size_t(stream)];
    const auto counts = [&](const Instruction& i) {
      return i.stream == stream && i.what != Instruction::What::allocate && i.what != Instruction::What::release;
    };
    while (n < all.size() && !counts(all[n])) ++n;
    return n < all.size() ? &all[n] : nullptr;
  }
  const Op& op(int rank, const Instruction& i) const { return of_rank_[size_t(rank)]->signatures[size_t(i.index)].op; }
  /// May the rank's collective be entered, and is it this one?
  bool in(int rank, const CollectiveAttributes& wanted, bool one_at_a_time, StreamId* stream) {
    size_t first = SIZE_MAX;
    bool here = false;
    for (int s = 0; s < kStreams; ++s) {
      const Instruction* i = at(rank, StreamId(s));
      if (!i || i->what != Instruction::What::op || !is_collective(*op(rank, *i).kind)) continue;
      const auto have = op(rank, *i).get<CollectiveAttributes>();
      if (have.axes != wanted.axes || have.sequence != wanted.sequence) continue;
      here = true;
      *stream = StreamId(s);
      first = head_[size_t(rank)][size_t(s)];
    }
    if (!here || !one_at_a_time) return here;
    const auto& all = of_rank_[size_t(rank)]->instructions; // none that was issued before is left
    for (size_t n = 0; n < first; ++n)
      if (all[n].what == Instruction::What::op && is_collective(*op(rank, all[n]).kind) &&
          n >= head_[size_t(rank)][size_t(all[n].stream)])
        return false;
    return true;
  }
  bool step(int rank, StreamId stream, bool one_at_a_time) {
    const Instruction* i = at(rank, stream);
    if (!i) return false;
    std::vector<bool>& recorded = recorded_[size_t(rank)];
    if (i->what == Instruction::What::wait && !recorded[size_t(i->index)]) return false;
    if (i->what == Instruction::What::record) recorded[size_t(i->index)] = true;
    if (i->what != Instruction::What::op || !is_collective(*op(rank, *i).kind)) {
      ++head_[size_t(rank)][size_t(stream)];
      return true;
    }
    const auto wanted = op(rank, *i).get<CollectiveAttributes>();
    std::vector<std::pair<int, StreamId>> members;
    for (int member : meshes_[size_t(rank)].group(Axes(uint32_t(wanted.axes)))) {
      members.emplace_back(member, stream);
      if (!in(member, wanted, one_at_a_time, &members.back().second)) return false;
    }
    for (const auto& [member, of] : members) ++head_[size_t(member)][size_t(of)];
    return true;
  }
  const std::vector<const Program*> of_rank_;
  std::vector<Mesh> meshes_;
  std::vector<std::array<size_t, kStreams>> head_;
  std::vector<std::vector<bool>> recorded_;
};

} // namespace

TEST_SUITE("comm_check_simulated") {

  TEST_CASE("deadlocks are found where a plain simulation of every rank finds them") {
    std::mt19937 random(7);
    int ended[2] = {}, stuck[2] = {};
    MeshShape shape = mesh_of(2, 2);
    shape.pp = 2;
    for (int trial = 0; trial < 400; ++trial) {
      const StreamId stream = trial % 2 ? StreamId::exchange : StreamId::communication;
      std::vector<Plan> plans;
      const int programs = 1 + trial % 5;
      for (int p = 0; p < programs; ++p)
        plans.push_back(Recorder(shape, 0, stream).step([&](Recorder& r) {
          std::vector<int> order{0, 0, 0, 1, 1, 1};
          std::shuffle(order.begin(), order.end(), random);
          for (int which : order) {
            if (random() % 3 == 0) r.tensor.stream().wait(r.data.stream().record());
            if (random() % 3 == 0) r.data.stream().wait(r.tensor.stream().record());
            r.gather(which ? r.tensor : r.data);
          }
        }));
      std::vector<const Program*> of_rank;
      for (int rank = 0; rank < 8; ++rank) of_rank.push_back(&plans[random() % plans.size()].programs[0]);
      const Sentences found = collective_faults(Mesh(shape, 0, 8), of_rank);
      PlainPlay plain(shape, of_rank);
      const bool streams_end = plain.ends(false), device_ends = plain.ends(true);
      ++(streams_end ? ended : stuck)[0];
      ++(device_ends ? ended : stuck)[1];
      REQUIRE(found.empty() == (streams_end && device_ends));
      if (!found.empty()) REQUIRE((found[0].find("deadlock on independent") != std::string::npos) == !streams_end);
    }
    MESSAGE("independent streams: ", ended[0], " end, ", stuck[0], " do not; one at a time: ", ended[1], ", ",
            stuck[1]);
    CHECK(std::min({ended[0], stuck[0], ended[1], stuck[1]}) > 30);
    CHECK(stuck[1] > stuck[0]);
  }
}
