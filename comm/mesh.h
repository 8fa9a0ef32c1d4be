// The ranks as an array over named axes; groups are its slices.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace triax {

enum class Axis : int { pod, pp, dp, cp, tp };
constexpr int kAxes = 5;
const char* name_of(Axis axis);

/// Rank = coordinates in row-major order, tp fastest. Plain values; every rank holds the same mesh but for `rank`.
class Mesh {
public:
  /// Throws with the arithmetic where the sizes do not multiply to `world`.
  Mesh(const std::array<int, kAxes>& sizes, int rank, int world);

  int rank() const { return rank_; }
  int world() const { return world_; }
  int size(Axis axis) const { return sizes_[int(axis)]; }
  int coordinate(Axis axis) const { return coordinate_of(rank_)[int(axis)]; }
  std::array<int, kAxes> coordinate_of(int rank) const;

  /// The ranks that differ from this one along the given axes only, ascending.
  std::vector<int> group(std::initializer_list<Axis> axes) const;
  std::string describe() const; ///< "dp 2 (2 ranks)"

private:
  std::array<int, kAxes> sizes_;
  int rank_, world_;
};

} // namespace triax
