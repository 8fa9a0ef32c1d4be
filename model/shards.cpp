#include "model/shards.h"
#include "kernels/elementwise.h"
#include "model/planted.h"
#include <algorithm>
#include <bit>
#include <utility>

namespace triax {
namespace {

Axes scattered_axes(ZeroStage stage) { return stage == ZeroStage::none ? Axes{} : Axes{Axis::shard}; }

/// Buffers whose reduction may be under way while the next is filled.
constexpr size_t kReducing = 2;

/// By pass. A lane is summed in a buffer where no finished one waits; when it ends it meets those at the levels of the
/// tree that are full.
std::vector<Shards::Lane> lanes_of_passes(int64_t lanes, int64_t passes) {
  std::vector<Shards::Lane> of_pass;
  std::vector<int64_t> waiting(size_t(std::bit_width(uint64_t(lanes))), -1); // by level, the buffer of a sum; -1: none
  const int64_t passes_per_lane = passes / lanes;
  for (int64_t number = 0; number < lanes; ++number) {
    Shards::Lane lane;
    while (std::find(waiting.begin(), waiting.end(), lane.buffer) != waiting.end()) ++lane.buffer;
    size_t level = 0;
    for (; number >> level & 1; ++level) lane.merged.push_back(std::exchange(waiting[level], -1));
    if (level < waiting.size()) waiting[level] = lane.buffer;
    for (int64_t n = 0; n < passes_per_lane; ++n) {
      lane.begins = n == 0;
      lane.ends = n + 1 == passes_per_lane;
      lane.last = lane.ends && number + 1 == lanes;
      of_pass.push_back(lane);
    }
  }
  return of_pass;
}

} // namespace

Shards::Shards(Groups& groups, const ParamTable& table, Dtype dtype, const Options& o)
    : groups_(groups), device_(groups.device()), table_(table), stage_(o.stage),
      scatter_(groups.along(scattered_axes(o.stage))),
      rest_(groups.along(Axes(kDataAxes.bits() & ~scattered_axes(o.stage).bits()))),
      lanes_of_passes_(lanes_of_passes(o.lanes, o.passes)), pieces_(scatter_.size()),
      lane_buffers_(std::bit_width(uint64_t(o.lanes))), overlap_(o.overlap),
      cut_gradients_(!o.fixed_order && pieces_ > 1 && o.stage >= ZeroStage::gradients) {
  ENSURE(o.lanes > 0 && o.passes % o.lanes == 0 && (o.lanes == 1 || o.fixed_order), o.passes, " passes in ", o.lanes,
         " lanes");
  const int64_t all = table.elements(), mine = all / pieces_;
  own_weights_ = device_.persistent("weights", Purpose::weights, dtype, {mine});
  if (pieces_ > 1 && stage_ != ZeroStage::weights)
    whole_weights_ = device_.persistent("gathered weights", Purpose::weights, dtype, {all});
  if (!cut_gradients_) lanes_ = device_.persistent("gradients", Purpose::gradients, Dtype::f32, {lane_buffers_, all});
  if (pieces_ > 1) own_sums_ = device_.persistent("summed gradients", Purpose::gradients, Dtype::f32, {mine});
  fetched_.resize(table.units().size());
  partial_.resize(table.units().size());
}

Tensor Shards::piece(const Tensor& buffer, int u) const {
  return buffer.empty() ? buffer : buffer.slice(0, unit(u).begin / pieces_, unit(u).elements / pieces_);
}

Tensor Shards::lane(int64_t buffer) const { return lanes_.slice(0, buffer, 1).view({table_.elements()}); }

Tensor Shards::lane(int64_t buffer, int u) const { return unit_of(lane(buffer), unit(u)); }

Tensor Shards::own_gradients(int u) const { return piece(gradient_sums(), u); }

Tensor Shards::gradient_sums() const { return pieces_ > 1 ? own_sums_ : lane(lanes_of_passes_.back().buffer); }

void Shards::begin_step() {
  for (auto& fetched : fetched_) fetched.reset();
  pass_of_.assign(table_.units().size(), 0);
  begun_.assign(table_.units().size(), false);
  reducing_.clear();
}

void Shards::fetch(int u) {
  auto& fetched = fetched_[size_t(u)];
  if (fetched) return;
  fetched = std::make_unique<Fetched>();
  if (stage_ == ZeroStage::weights) {
    fetched->held =
        device_.allocate(concat("weights of ", unit(u).name), Purpose::weights, dtype(), {unit(u).elements});
    fetched->tensor = *fetched->held;
  } else {
    fetched->tensor = unit_of(whole_weights_, unit(u));
  }
  scatter_.follow_compute(); // what used these bytes before
  scatter_.all_gather(fetched->tensor, piece(own_weights_, u));
  fetched->there = scatter_.stream().record();
  if (!overlap_) scatter_.compute_follows();
}

Tensor Shards::weights(int u, int next) {
  if (pieces_ == 1) return unit_of(own_weights_, unit(u));
  fetch(u);
  if (next >= 0) fetch(next);
  Fetched& fetched = *fetched_[size_t(u)];
  if (!std::exchange(fetched.awaited, true)) device_.compute().wait(fetched.there);
  return fetched.tensor;
}

void Shards::done(int u) {
  if (stage_ == ZeroStage::weights) fetched_[size_t(u)].reset();
}

Tensor Shards::gradients(int u) {
  const bool begins = !begun_[size_t(u)] && (cut_gradients_ || lane_of_unit(u).begins);
  Allocation& partial = partial_[size_t(u)];
  if (cut_gradients_ && begins) {
    for (; reducing_.size() >= kReducing; reducing_.pop_front()) device_.compute().wait(reducing_.front());
    partial =
        device_.allocate(concat("gradients of ", unit(u).name), Purpose::gradients, Dtype::f32, {unit(u).elements});
  }
  const Tensor sum = cut_gradients_ ? *partial : lane(lane_of_unit(u).buffer, u);
  if (begins) device_.compute().run(fill(sum, 0.0f));
  begun_[size_t(u)] = true;
  return sum;
}

void Shards::finished(int u) {
  const Tensor sum = gradients(u);
  const int64_t pass = pass_of_[size_t(u)]++;
  const Lane& l = lane_of(pass);
  begun_[size_t(u)] = false;
  if (!cut_gradients_ && !l.ends) return;
  sum_shared(u, sum); // of every lane by itself, so that it does not matter who has the others
  for (int64_t other : l.merged) device_.compute().run(add(sum, lane(other, u), sum));
  if (!cut_gradients_ && !l.last) return;
  if (!planted_skip_of_reduction(unit(u).name)) reduce(u, sum, pass == 0, l.last);
  if (!overlap_) finish_step();
  if (cut_gradients_) {
    reducing_.push_back(scatter_.stream().record());
    partial_[size_t(u)] = {};
  }
}

void Shards::reduce(int u, const Tensor& sum, bool first, bool last) {
  scatter_.follow_compute();
  if (pieces_ > 1) scatter_.reduce_scatter(piece(own_sums_, u), sum, cut_gradients_ && !first);
  if (last) sum_over_rest(pieces_ > 1 ? piece(own_sums_, u) : sum);
}

void Shards::sum_shared(int u, const Tensor& gradients) {
  const Unit& all = unit(u);
  const auto sum = [&](Axes axes, int64_t from, int64_t to) {
    if (from == to) return;
    Collectives& group = groups_.along(axes);
    group.in_line([&] { group.all_reduce(gradients.slice(0, from, to - from)); });
  };
  sum({Axis::copy}, all.copied_from, all.whole_from);
  if (all.partial) sum(kTensorAxes, all.whole_from, all.length);
}

void Shards::sum_over_rest(const Tensor& sum) {
  if (rest_.size() == 1) return;
  rest_.follow_compute();
  const Allocation part =
      device_.allocate("summed part", Purpose::communication, Dtype::f32, {sum.size() / rest_.size()});
  rest_.reduce_scatter(part, sum);
  rest_.all_gather(sum, part);
}

void Shards::finish_step() {
  scatter_.compute_follows();
  rest_.compute_follows();
}

} // namespace triax
