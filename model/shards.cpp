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

} // namespace

Shards::Shards(Groups& groups, const ParamTable& table, Dtype dtype, const Options& o)
    : groups_(groups), device_(groups.device()), table_(table), stage_(o.stage),
      scatter_(groups.along(scattered_axes(o.stage))),
      rest_(groups.along(Axes(kDataAxes.bits() & ~scattered_axes(o.stage).bits()))), passes_(o.passes),
      passes_per_lane_(o.passes / o.lanes), pieces_(scatter_.size()), lane_buffers_(std::bit_width(uint64_t(o.lanes))),
      overlap_(o.overlap), cut_gradients_(!o.fixed_order && pieces_ > 1 && o.stage >= ZeroStage::gradients) {
  ENSURE(o.lanes > 0 && o.passes % o.lanes == 0 && (o.lanes == 1 || o.fixed_order), o.passes, " passes in ", o.lanes,
         " lanes");
  const int64_t all = table.elements(), mine = all / pieces_;
  own_weights_ = device_.persistent("weights", Purpose::weights, dtype, {mine});
  if (pieces_ > 1 && stage_ != ZeroStage::weights)
    whole_weights_ = device_.persistent("gathered weights", Purpose::weights, dtype, {all});
  if (!cut_gradients_) lanes_ = device_.persistent("gradients", Purpose::gradients, Dtype::f32, {lane_buffers_, all});
  if (pieces_ > 1) own_sums_ = device_.persistent("summed gradients", Purpose::gradients, Dtype::f32, {mine});
  waiting_.assign(size_t(lane_buffers_), -1);
  fetched_.resize(table.units().size());
  partial_.resize(table.units().size());
}

Tensor Shards::piece(const Tensor& buffer, int u) const {
  return buffer.empty() ? buffer : buffer.slice(0, unit(u).begin / pieces_, unit(u).elements / pieces_);
}

Tensor Shards::lane(int64_t buffer) const { return lanes_.slice(0, buffer, 1).view({table_.elements()}); }

Tensor Shards::lane(int64_t buffer, int u) const { return unit_of(lane(buffer), unit(u)); }

Tensor Shards::own_gradients(int u) const { return piece(gradient_sums(), u); }

Tensor Shards::gradient_sums() const { return pieces_ > 1 ? own_sums_ : lane(current_); }

void Shards::begin_step() {
  for (auto& fetched : fetched_) fetched.reset();
  waiting_.assign(waiting_.size(), -1);
  reducing_.clear();
}

void Shards::begin_pass(int64_t pass) {
  pass_ = pass;
  if (cut_gradients_) {
    if (pass == 0) device_.compute().run(fill(own_sums_, 0.0f));
    return;
  }
  if (!lane_begins()) return;
  // A lane is summed in a buffer where no finished one waits; when it ends it meets those at the levels that are full.
  for (current_ = 0; std::find(waiting_.begin(), waiting_.end(), current_) != waiting_.end();) ++current_;
  device_.compute().run(fill(lane(current_), 0.0f));
  const int64_t number = pass / passes_per_lane_;
  merged_.clear();
  size_t level = 0;
  for (; number >> level & 1; ++level) merged_.push_back(std::exchange(waiting_[level], -1));
  if (level < waiting_.size()) waiting_[level] = current_;
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
  if (!cut_gradients_) return lane(current_, u);
  Allocation& partial = partial_[size_t(u)];
  if (partial->empty()) {
    for (; reducing_.size() >= kReducing; reducing_.pop_front()) device_.compute().wait(reducing_.front());
    partial =
        device_.allocate(concat("gradients of ", unit(u).name), Purpose::gradients, Dtype::f32, {unit(u).elements});
    device_.compute().run(fill(partial, 0.0f));
  }
  return partial;
}

void Shards::finished(int u) {
  const Tensor sum = gradients(u);
  if (!cut_gradients_ && !lane_ends()) return;
  sum_shared(u, sum); // of every lane by itself, so that it does not matter who has the others
  for (int64_t other : merged_) device_.compute().run(add(sum, lane(other, u), sum));
  if (!cut_gradients_ && !last_pass()) return;
  if (!planted_skip_of_reduction(unit(u).name)) reduce(u, sum);
  if (!overlap_) finish_step();
  if (cut_gradients_) {
    reducing_.push_back(scatter_.stream().record());
    partial_[size_t(u)] = {};
  }
}

void Shards::reduce(int u, const Tensor& sum) {
  scatter_.follow_compute();
  if (pieces_ > 1) scatter_.reduce_scatter(piece(own_sums_, u), sum, cut_gradients_);
  if (last_pass()) sum_over_rest(pieces_ > 1 ? piece(own_sums_, u) : sum);
}

void Shards::sum_shared(int u, const Tensor& gradients) {
  const Unit& all = unit(u);
  if (!all.partial) return;
  Collectives& group = groups_.along(all.shared_by == table_.cut().tensor ? kTensorAxes : Axes{Axis::copy});
  group.in_line([&] { group.all_reduce(gradients.slice(0, all.shared_from, all.length - all.shared_from)); });
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
