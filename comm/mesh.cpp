#include "comm/mesh.h"
#include "kernels/check.h"
#include <algorithm>

namespace triax {

const char* name_of(Axis axis) {
  constexpr const char* kNames[] = {"pod", "pp", "dp", "cp", "tp"};
  return kNames[int(axis)];
}

Mesh::Mesh(const std::array<int, kAxes>& sizes, int rank, int world) : sizes_(sizes), rank_(rank), world_(world) {
  int64_t product = 1;
  std::string arithmetic;
  for (int a = 0; a < kAxes; ++a) {
    DEMAND(sizes[a] >= 1, "mesh.", name_of(Axis(a)), " is ", sizes[a], "; an axis has at least size 1");
    product *= sizes[a];
    if (sizes[a] > 1) arithmetic += concat(arithmetic.empty() ? "" : " x ", name_of(Axis(a)), " ", sizes[a]);
  }
  DEMAND(product == world, "the mesh ", arithmetic.empty() ? "dp 1" : arithmetic, " has ", product, " ranks, but ",
         world, world == 1 ? " was" : " were", " launched; set mesh.* so that the product of the axes is ", world,
         ", or launch with `mpirun -n ", product, "`");
}

std::array<int, kAxes> Mesh::coordinate_of(int rank) const {
  std::array<int, kAxes> at;
  for (int a = kAxes - 1; a >= 0; rank /= sizes_[a--]) at[a] = rank % sizes_[a];
  return at;
}

std::vector<int> Mesh::group(std::initializer_list<Axis> axes) const {
  const auto here = coordinate_of(rank_);
  std::vector<int> ranks;
  for (int r = 0; r < world_; ++r) {
    const auto there = coordinate_of(r);
    bool member = true;
    for (int a = 0; a < kAxes; ++a)
      member = member && (there[a] == here[a] || std::find(axes.begin(), axes.end(), Axis(a)) != axes.end());
    if (member) ranks.push_back(r);
  }
  return ranks;
}

std::string Mesh::describe() const {
  std::string text;
  for (int a = 0; a < kAxes; ++a)
    if (sizes_[a] > 1) text += concat(name_of(Axis(a)), " ", sizes_[a], " ");
  return concat(text.empty() ? "dp 1 " : text, "(", world_, world_ == 1 ? " rank)" : " ranks)");
}

} // namespace triax
