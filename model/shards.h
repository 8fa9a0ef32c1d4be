// Weights, gradients and their sums over the data axes, for every ZeRO stage (Rajbhandari et al. 2020): what a rank
// holds of each unit, when the rest is gathered, and when gradients are reduced.
#pragma once
#include "comm/collective.h"
#include "model/parameters.h"
#include <deque>

namespace triax {

/// What is cut over the `shard` axis: nothing; the optimizer's state; gradients too; weights too.
enum class ZeroStage { none, optimizer, gradients, weights };

/// The micro-batches of a step are passes, which each unit has one after the other, but which units have at different
/// times. `lanes` of equally many passes are summed apart and then over a fixed tree; more than one makes sums
/// independent of how many ranks share the lanes.
class Shards final : public Parameters {
public:
  struct Options {
    ZeroStage stage = ZeroStage::none;
    int64_t lanes = 1, passes = 1;
    bool fixed_order = false; ///< a lane's passes are summed before ranks' are: gradients are held whole at any stage
    bool overlap = true;      ///< false: the compute stream waits for every exchange
  };
  /// Allocates weights and gradients.
  Shards(Groups& groups, const ParamTable& table, Dtype dtype, const Options& options);

  /// A step begins: every unit's weights are what its owners hold.
  void begin_step();
  /// All gradients of the step are in `own_gradients`, for the compute stream.
  void finish_step();

  Dtype dtype() const override { return own_weights_.dtype; }
  Tensor weights(int unit, int next) override;
  void done(int unit) override;
  Tensor gradients(int unit) override;
  void finished(int unit) override;

  /// This rank's piece of a unit, [elements / pieces], of a buffer with that many elements of each unit.
  Tensor piece(const Tensor& buffer, int unit) const;
  int64_t pieces() const { return pieces_; }
  int64_t index() const { return scatter_.group().index(); } ///< of this rank's piece
  /// What this rank owns: [elements of the table / pieces].
  const Tensor& own_weights() const { return own_weights_; }
  Tensor own_gradients(int unit) const; ///< after finish_step
  Tensor gradient_sums() const;         ///< of all units, as own_weights

  /// Where a pass is summed: in `buffer`, which its lane begins anew; to which, when the lane ends, those of `merged`
  /// are added, one after the other. Sums beside the gradients go the same way.
  struct Lane {
    int64_t buffer = 0;
    bool begins = false, ends = false, last = false; ///< `last`: of all passes
    std::vector<int64_t> merged;
  };
  const Lane& lane_of(int64_t pass) const { return lanes_of_passes_[size_t(pass)]; }
  int64_t lane_buffers() const { return lane_buffers_; }

private:
  const Lane& lane_of_unit(int u) const { return lane_of(pass_of_[size_t(u)]); }
  const Unit& unit(int u) const { return table_.units()[size_t(u)]; }
  void fetch(int unit);
  void reduce(int unit, const Tensor& sum, bool first, bool last);
  void sum_shared(int unit, const Tensor& gradients);
  void sum_over_rest(const Tensor& piece);
  Tensor lane(int64_t buffer) const; ///< f32[elements]
  Tensor lane(int64_t buffer, int unit) const;

  Groups& groups_;
  Device& device_;
  const ParamTable& table_;
  const ZeroStage stage_;
  Collectives &scatter_, &rest_; ///< over which units are cut, and over which the pieces' gradients are summed
  const std::vector<Lane> lanes_of_passes_;
  const int64_t pieces_, lane_buffers_;
  const bool overlap_;
  const bool cut_gradients_; ///< reduced to this rank's piece after every pass
  Tensor own_weights_, whole_weights_;
  Tensor lanes_;    ///< f32[lane buffers, elements]; absent where gradients are cut
  Tensor own_sums_; ///< f32[elements / pieces]; absent where that is all, in one lane buffer

  std::vector<int64_t> pass_of_; ///< by unit: which one its next gradients are of
  std::vector<bool> begun_;      ///< by unit: the lane of that pass
  struct Fetched {
    Allocation held;
    Tensor tensor;
    Event there;
    bool awaited = false;
  };
  std::vector<std::unique_ptr<Fetched>> fetched_; ///< by unit
  std::vector<Allocation> partial_;               ///< by unit: this pass's gradients, where they are cut
  std::deque<Event> reducing_;                    ///< of such buffers, oldest first
};

} // namespace triax
