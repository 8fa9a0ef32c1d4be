// The mesh, its groups, and what collectives issue.
#include "comm/collective.h"
#include "kernels/check.h"
#include "kernels/elementwise.h"
#include <algorithm>
#include <doctest/doctest.h>

using namespace triax;

namespace {

const Axis kAll[] = {Axis::pod, Axis::pp, Axis::replica, Axis::shard, Axis::cp, Axis::tp, Axis::copy};

MeshShape shape_of(int pod, int pp, int dp, int cp, int tp) {
  MeshShape shape;
  shape.pod = pod, shape.pp = pp, shape.dp = dp, shape.cp = cp, shape.tp = tp;
  return shape;
}

/// The operations of a program, as "kind over axes on stream".
std::vector<std::string> issued(const Program& p) {
  std::vector<std::string> list;
  for (const Instruction& i : p.instructions) {
    if (i.what != Instruction::What::op) continue;
    const Op& op = p.signatures[size_t(i.index)].op;
    std::string text = op.kind->name;
    if (is_collective(*op.kind)) text += " over " + Axes(uint32_t(op.get<CollectiveAttributes>().axes)).name();
    list.push_back(concat(text, " on ", name_of(i.stream)));
  }
  return list;
}

} // namespace

TEST_SUITE("comm_mesh") {

  TEST_CASE("coordinates and groups of a mesh of all axes") {
    MeshShape shape = shape_of(2, 3, 4, 1, 4);
    shape.shard = 2;
    shape.copies = 2;
    const Mesh mesh(shape, 53, 96); // 53 = pod 1, pp 0, dp 1, tp 1 in sizes 2, 3, 4, 4
    CHECK(mesh.coordinate(Axis::pod) == 1);
    CHECK(mesh.coordinate(Axis::pp) == 0);
    CHECK(mesh.coordinate(Axis::replica) == 0);
    CHECK(mesh.coordinate(Axis::shard) == 1);
    CHECK(mesh.coordinate(Axis::tp) == 0);
    CHECK(mesh.coordinate(Axis::copy) == 1);
    CHECK(mesh.group({Axis::copy}) == std::vector<int>{52, 53});
    CHECK(mesh.group(kTensorAxes) == std::vector<int>{52, 53, 54, 55});
    CHECK(mesh.group({Axis::shard}) == std::vector<int>{49, 53});
    CHECK(mesh.group({Axis::replica}) == std::vector<int>{53, 61});
    CHECK(mesh.group({Axis::replica, Axis::shard}) == std::vector<int>{49, 53, 57, 61});
    CHECK(mesh.group({Axis::pod}) == std::vector<int>{5, 53});
    CHECK(mesh.group({}) == std::vector<int>{53});
    CHECK(mesh.index(kDataAxes) == 5); // pod 1, then the second of 4
    CHECK(mesh.size(kDataAxes) == 8);
    CHECK(mesh.describe() == "pod 2 x pp 3 x dp 4 x tp 4 (96 ranks)");
    CHECK(kDataAxes.name() == "pod+replica+shard+cp");
  }

  TEST_CASE("groups along any set of axes part the ranks, in the order of their index") {
    MeshShape shape = shape_of(2, 1, 4, 1, 4);
    shape.shard = 2;
    shape.copies = 2;
    for (const char* order : {"pod,pp,dp,cp,tp", "tp,dp,pp,cp,pod", "dp,tp,cp,pod,pp"}) {
      shape.order = order;
      for (uint32_t bits = 0; bits < 128; ++bits) {
        const Axes axes(bits);
        std::vector<int> seen(32, 0);
        for (int r = 0; r < 32; ++r) {
          const Mesh mesh(shape, r, 32);
          const std::vector<int> group = mesh.group(axes);
          REQUIRE(int(group.size()) == mesh.size(axes));
          CHECK(group[size_t(mesh.index(axes))] == r);
          for (int member : group) ++seen[size_t(member)];
        }
        for (int count : seen) CHECK(count == Mesh(shape, 0, 32).size(axes));
      }
    }
  }

  TEST_CASE("the last axis of the order has neighbouring ranks") {
    MeshShape shape = shape_of(1, 1, 2, 1, 2);
    CHECK(Mesh(shape, 0, 4).group({Axis::tp}) == std::vector<int>{0, 1});
    shape.order = "pod,tp,pp,cp,dp";
    CHECK(Mesh(shape, 0, 4).group({Axis::tp}) == std::vector<int>{0, 2});
  }

  TEST_CASE("ranks of a host are neighbours, however a launcher has numbered them") {
    const std::vector<int> by_turns{0, 1, 0, 1, 0, 1, 0, 1};
    MeshShape shape = shape_of(1, 1, 2, 1, 4);
    for (int r = 0; r < 8; ++r) {
      const Mesh mesh(shape, r, 8, by_turns);
      CHECK(mesh.hosts_of(kTensorAxes) == 1);
      CHECK(mesh.hosts_of(kDataAxes) == 2);
    }
    CHECK(Mesh(shape, 3, 8, by_turns).group(kTensorAxes) == std::vector<int>{1, 3, 5, 7});
    CHECK(Mesh(shape, 0, 8).hosts_of(kTensorAxes) == 0);
  }

  TEST_CASE("a ring is the ranks of an axis, beside the group of the same ranks") {
    const Mesh mesh(shape_of(1, 1, 1, 4, 2), 3, 8);
    const Axes ring = Axes::ring(Axis::cp);
    CHECK(ring.name() == "ring of cp");
    CHECK(ring.is_ring());
    CHECK(!Axes{Axis::cp}.is_ring());
    CHECK(ring.bits() != Axes{Axis::cp}.bits());
    CHECK(mesh.group(ring) == std::vector<int>{1, 3, 5, 7});
    CHECK(mesh.size(ring) == 4);
    CHECK(mesh.index(ring) == 1);
    const Group group(ring, mesh.group(ring), 3, nullptr);
    CHECK(group.next() == 0);
    CHECK(group.previous() == 2);
    const auto device = Device::ghost({});
    const auto transport = Transport::ghost(3, 8);
    Groups groups(*device, *transport, mesh);
    const Tensor x = device->persistent("x", Purpose::activations, Dtype::f32, {2, 100});
    const Tensor all = device->persistent("all", Purpose::activations, Dtype::f32, {400});
    device->begin("train");
    groups.begin();
    groups.along(ring).shift(x.slice(0, 0, 1), x.slice(0, 1, 1));
    groups.along(kDataAxes).all_gather(all, x.slice(0, 1, 1));
    device->end();
    CHECK(issued(device->plan().programs[0]) ==
          std::vector<std::string>{"shift over ring of cp on exchange",
                                   "all_gather over pod+replica+shard+cp on communication"});
    CHECK_THROWS_AS(groups.along(ring).shift(x.slice(0, 0, 1), x), Error);
  }

  TEST_CASE("a product that is not the number of ranks is refused with the arithmetic") {
    const auto make = [](const MeshShape& shape, int world) { Mesh(shape, 0, world); };
    CHECK_THROWS_WITH_AS(make(shape_of(1, 2, 3, 1, 1), 4),
                         doctest::Contains("pp 2 x dp 3 has 6 ranks, but 4 were launched"), Error);
    CHECK_THROWS_WITH_AS(make(shape_of(1, 1, 0, 1, 1), 1), doctest::Contains("mesh.dp is 0"), Error);
    MeshShape shape = shape_of(1, 1, 6, 1, 1);
    shape.shard = 4;
    CHECK_THROWS_WITH_AS(make(shape, 6), doctest::Contains("zero.group is 4, but must divide mesh.dp, which is 6"),
                         Error);
    for (const char* order : {"", "pod,pp,dp,cp", "pod,pp,dp,cp,tp,tp", "pod,pp,dp,cp,dp", "pod,pp,dp,cp,ep"}) {
      shape = MeshShape{};
      shape.order = order;
      CHECK_THROWS_WITH_AS(make(shape, 1), doctest::Contains("must name each of pod, pp, dp, cp, tp once"), Error);
    }
  }

  TEST_CASE("sums are an exchange and a fixed tree, on the group's stream") {
    const MeshShape shape = shape_of(1, 1, 4, 1, 2);
    const auto device = Device::ghost({});
    const auto transport = Transport::ghost(0, 8);
    Groups groups(*device, *transport, Mesh(shape, 0, 8));
    const Tensor x = device->persistent("x", Purpose::gradients, Dtype::f32, {4000});
    device->begin("train");
    groups.begin();
    device->compute().run(fill(x, 1.0f));
    Collectives& data = groups.along(kDataAxes);
    data.follow_compute();
    data.reduce_scatter(x.slice(0, 0, 1000), x);
    data.all_reduce(x.slice(0, 0, 10));
    data.compute_follows();
    Collectives& tensor = groups.along(kTensorAxes);
    tensor.follow_compute();
    tensor.all_gather(x.slice(0, 0, 2000), x.slice(0, 0, 1000));
    device->end();
    const Plan plan = device->plan(); // checked: received pieces, streams
    CHECK(issued(plan.programs[0]) ==
          std::vector<std::string>{"fill on compute", "all_to_all over pod+replica+shard+cp on communication",
                                   "sum_pieces on communication",
                                   "all_gather over pod+replica+shard+cp on communication",
                                   "sum_pieces on communication", "all_gather over tp+copy on exchange"});
    const Program& p = plan.programs[0];
    for (const Instruction& i : p.instructions)
      if (i.what == Instruction::What::op)
        CHECK(p.places[size_t(i.place)].find("tests/comm_mesh.cpp:") != std::string::npos);
  }

  TEST_CASE("a group of one issues no collective") {
    const auto device = Device::ghost({});
    const auto transport = Transport::ghost(0, 1);
    Groups groups(*device, *transport, Mesh(MeshShape{}, 0, 1));
    const Tensor x = device->persistent("x", Purpose::gradients, Dtype::f32, {100});
    device->begin("train");
    Collectives& data = groups.along(kDataAxes);
    data.follow_compute();
    data.all_reduce(x);
    data.all_gather(x, x);
    data.reduce_scatter(x, x);
    data.compute_follows();
    device->end();
    CHECK(device->plan().programs[0].instructions.empty());
  }

  TEST_CASE("an announced world that MPI would not see is refused") {
    setenv("SLURM_NTASKS", "4", 1);
    setenv("SLURM_PROCID", "2", 1);
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE"}) unsetenv(name);
    CHECK_THROWS_WITH_AS(Launch::detect(), doctest::Contains("--mpi=pmix"), Error);
    unsetenv("SLURM_NTASKS");
    unsetenv("SLURM_PROCID");
    CHECK(Launch::detect().world == 1);
  }

} // TEST_SUITE
