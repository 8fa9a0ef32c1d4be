#include "comm/mesh.h"
#include "kernels/check.h"
#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

namespace triax {
namespace {

/// The axes that a word of the configuration's order stands for, outermost first.
std::vector<Axis> axes_of(const std::string& word) {
  if (word == "pod") return {Axis::pod};
  if (word == "pp") return {Axis::pp};
  if (word == "dp") return {Axis::replica, Axis::shard};
  if (word == "cp") return {Axis::cp};
  if (word == "tp") return {Axis::tp, Axis::copy};
  return {};
}

std::array<std::pair<const char*, int>, 5> named_sizes_of(const MeshShape& s) {
  return {{{"pod", s.pod}, {"pp", s.pp}, {"dp", s.dp}, {"cp", s.cp}, {"tp", s.tp}}};
}

std::array<Axis, kAxes> parse_order(const std::string& order) {
  std::array<Axis, kAxes> axes{};
  std::set<Axis> seen;
  std::istringstream words(order);
  for (std::string word; std::getline(words, word, ',');)
    for (Axis axis : axes_of(word))
      if (seen.insert(axis).second) axes[seen.size() - 1] = axis;
  DEMAND(seen.size() == kAxes && std::count(order.begin(), order.end(), ',') == 4, "mesh.order is '", order,
         "', but must name each of pod, pp, dp, cp, tp once, the outermost first, as in pod,pp,dp,cp,tp");
  return axes;
}

} // namespace

const char* name_of(Axis axis) {
  constexpr const char* kNames[] = {"pod", "pp", "replica", "shard", "cp", "tp", "copy"};
  return kNames[int(axis)];
}

std::string Axes::name() const {
  if (is_link()) return concat("link ", first(), " of ", line().name(), back() ? ", back" : "");
  std::string text;
  for (int a = 0; a < kAxes; ++a)
    if (has(Axis(a))) text += concat(text.empty() ? "" : "+", name_of(Axis(a)));
  return is_ring() ? "ring of " + text : text;
}

std::string MeshShape::arithmetic() const {
  std::string text;
  for (const auto& [name, size] : named_sizes_of(*this))
    if (size > 1) text += concat(text.empty() ? "" : " x ", name, " ", size);
  return text.empty() ? "dp 1" : text;
}

Mesh::Mesh(const MeshShape& s, int rank, int world, const std::vector<int>& nodes)
    : order_(parse_order(s.order)), rank_at_(size_t(std::max(world, 0))), nodes_(nodes), arithmetic_(s.arithmetic()),
      rank_(rank), world_(world) {
  for (const auto& [name, size] : named_sizes_of(s))
    DEMAND(size >= 1, "mesh.", name, " is ", size, "; an axis has at least size 1");
  DEMAND(s.ranks() == world, "the mesh ", arithmetic_, " has ", s.ranks(), " ranks, but ", world,
         world == 1 ? " was" : " were", " launched; set mesh.* so that the product of the axes is ", world,
         ", or launch with `mpirun -n ", s.ranks(), "`");
  const int shard = s.shard == 0 ? s.dp : s.shard;
  DEMAND(shard >= 1 && s.dp % shard == 0, "zero.group is ", s.shard, ", but must divide mesh.dp, which is ", s.dp);
  ENSURE(s.copies >= 1 && s.tp % s.copies == 0, "tp ", s.tp, " is not a multiple of ", s.copies, " copies");
  sizes_ = {s.pod, s.pp, s.dp / shard, shard, s.cp, s.tp / s.copies, s.copies};

  ENSURE(nodes.empty() || int(nodes.size()) == world, "hosts of ", nodes.size(), " ranks are known, of ", world);
  std::iota(rank_at_.begin(), rank_at_.end(), 0);
  if (!nodes.empty())
    std::stable_sort(rank_at_.begin(), rank_at_.end(),
                     [&](int a, int b) { return nodes[size_t(a)] < nodes[size_t(b)]; });
  *this = of_rank(rank);
}

std::array<int, kAxes> Mesh::coordinates_of(int place) const {
  std::array<int, kAxes> at{};
  for (int a = kAxes - 1; a >= 0; --a) {
    const size_t axis = size_t(order_[size_t(a)]);
    at[axis] = place % sizes_[axis];
    place /= sizes_[axis];
  }
  return at;
}

Mesh Mesh::of_rank(int rank) const {
  Mesh other = *this;
  const auto at = std::find(rank_at_.begin(), rank_at_.end(), rank);
  ENSURE(at != rank_at_.end(), "rank ", rank, " of ", world_);
  other.rank_ = rank;
  other.coordinates_ = coordinates_of(int(at - rank_at_.begin()));
  return other;
}

int Mesh::size(Axes axes) const {
  int product = 1;
  for (int a = 0; a < kAxes; ++a)
    if (axes.has(Axis(a))) product *= sizes_[size_t(a)];
  return product;
}

int Mesh::index(Axes axes) const {
  int index = 0;
  for (Axis axis : order_)
    if (axes.has(axis)) index = index * size(axis) + coordinate(axis);
  return index;
}

std::vector<int> Mesh::group(Axes axes) const {
  if (axes.is_link()) {
    const std::vector<int> line = group(axes.line());
    const size_t from = size_t(axes.first()), to = (from + 1) % line.size();
    if (rank_ != line[from] && rank_ != line[to]) return {rank_};
    return axes.back() ? std::vector{line[to], line[from]} : std::vector{line[from], line[to]};
  }
  std::vector<int> ranks;
  std::vector<std::array<int, kAxes>> members{coordinates_};
  for (Axis axis : order_) { // the product of the axes' sizes, in order
    if (!axes.has(axis)) continue;
    std::vector<std::array<int, kAxes>> more;
    for (auto member : members)
      for (int c = 0; c < size(axis); ++c) {
        member[size_t(axis)] = c;
        more.push_back(member);
      }
    members = std::move(more);
  }
  for (const auto& member : members) {
    int place = 0;
    for (Axis axis : order_) place = place * size(axis) + member[size_t(axis)];
    ranks.push_back(rank_at_[size_t(place)]);
  }
  return ranks;
}

int Mesh::hosts_of(Axes axes) const {
  std::set<int> hosts;
  if (!nodes_.empty())
    for (int rank : group(axes)) hosts.insert(nodes_[size_t(rank)]);
  return int(hosts.size());
}

std::string Mesh::describe() const { return concat(arithmetic_, " (", world_, world_ == 1 ? " rank)" : " ranks)"); }

} // namespace triax
