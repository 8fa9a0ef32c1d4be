// The ranks as an array over named axes; groups are slices of it, or sets of slices.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace triax {

/// The configuration's dp is `replica` x `shard`: a ZeRO stage shards over the inner one and keeps copies along the
/// outer one. Its tp is `tp` x `copy`: where a model has fewer key/value heads than ranks, `copy` neighbours hold the
/// same ones.
enum class Axis : int { pod, pp, replica, shard, cp, tp, copy };
constexpr int kAxes = 7;
const char* name_of(Axis axis);

/// A set of axes, which names a kind of group; a ring, the ranks of one axis as they exchange inside of layers, beside
/// what the same ranks have to sum; or a link, one direction between two neighbours of an axis, which names groups of
/// two: {sender, receiver}.
class Axes {
public:
  Axes(std::initializer_list<Axis> axes) {
    for (Axis axis : axes) bits_ |= uint32_t(1) << int(axis);
  }
  explicit Axes(uint32_t bits) : bits_(bits) {}
  static Axes ring(Axis axis) { return Axes(Axes{axis}.bits() | kRing); }
  /// Between coordinates `first` and `first` + 1 of the axis (0 behind the last): from the former to the latter, or
  /// back.
  static Axes link(Axis axis, int first, bool back) {
    return Axes(Axes{axis}.bits() | kLink | (back ? kBack : 0) | uint32_t(first) << kFirst);
  }
  bool has(Axis axis) const { return bits_ >> int(axis) & 1; }
  bool is_ring() const { return bits_ & kRing; }
  bool is_link() const { return bits_ & kLink; }
  Axes line() const { return Axes(bits_ & (kLink - 1)); } ///< of a link: its axis
  bool back() const { return bits_ & kBack; }
  int first() const { return int(bits_ >> kFirst); }
  uint32_t bits() const { return bits_; }
  std::string name() const; ///< "replica+shard"; "ring of cp"; "link 0 of pp, back"

private:
  static constexpr uint32_t kRing = 1 << 7, kLink = 1 << 8, kBack = 1 << 9, kFirst = 10;
  uint32_t bits_ = 0;
};
inline const Axes kSampleAxes{Axis::pod, Axis::replica, Axis::shard};         ///< that part the samples of a batch
inline const Axes kDataAxes{Axis::pod, Axis::replica, Axis::shard, Axis::cp}; ///< and their positions
inline const Axes kTensorAxes{Axis::tp, Axis::copy};                          ///< that part a layer

/// What a configuration asks for: sizes, and the axes from the slowest to the one whose neighbours are closest.
struct MeshShape {
  int pod = 1, pp = 1, dp = 1, cp = 1, tp = 1;
  int shard = 0;  ///< ranks of dp that share one copy of what ZeRO shards; 0: all
  int copies = 1; ///< ranks of tp with the same key/value heads
  std::string order = "pod,pp,dp,cp,tp";
  int64_t ranks() const { return int64_t(pod) * pp * dp * cp * tp; }
  std::string arithmetic() const; ///< "pp 2 x dp 3"; "dp 1" where all are 1
};

/// Plain values; every rank holds the same mesh but for `rank`.
class Mesh {
public:
  /// Throws with the arithmetic where the sizes do not multiply to `world`, where `shard` or `copies` do not divide
  /// their axis, or where `order` does not name each axis once. `nodes`: the host of each rank, as a number; ranks of a
  /// host become neighbours in the mesh, whatever their numbers. Empty: they are already.
  Mesh(const MeshShape& shape, int rank, int world, const std::vector<int>& nodes = {});

  int rank() const { return rank_; }
  int world() const { return world_; }
  int size(Axis axis) const { return sizes_[size_t(axis)]; }
  int size(Axes axes) const;
  int coordinate(Axis axis) const { return coordinates_[size_t(axis)]; }
  /// This rank's place among those that differ along `axes` only.
  int index(Axes axes) const;
  /// The ranks that differ from this one along the given axes only, in the mesh's order; of a link, its two ranks, or
  /// this one alone where it is neither.
  std::vector<int> group(Axes axes) const;
  /// How many hosts the group spans; 0 where the hosts are not known.
  int hosts_of(Axes axes) const;
  Mesh of_rank(int rank) const; ///< the same, as another rank has it
  std::string describe() const; ///< "dp 2 x tp 4 (8 ranks)"

private:
  std::array<int, kAxes> coordinates_of(int place) const;
  std::array<int, kAxes> sizes_;
  std::array<Axis, kAxes> order_; ///< outermost first
  std::vector<int> rank_at_;      ///< by place
  std::vector<int> nodes_;
  std::array<int, kAxes> coordinates_{};
  std::string arithmetic_;
  int rank_, world_;
};

} // namespace triax
