#include "comm/collective.h"
#include "comm/reducer.h"
#include <doctest/doctest.h>

using namespace triax;

TEST_SUITE("comm_mesh") {

  TEST_CASE("coordinates and groups of a mesh of all axes") {
    const Mesh mesh({2, 3, 2, 1, 2}, 17, 24); // 17 = pod 1, pp 1, dp 0, cp 0, tp 1
    CHECK(mesh.coordinate(Axis::pod) == 1);
    CHECK(mesh.coordinate(Axis::pp) == 1);
    CHECK(mesh.coordinate(Axis::dp) == 0);
    CHECK(mesh.coordinate(Axis::tp) == 1);
    CHECK(mesh.group({Axis::tp}) == std::vector<int>{16, 17});
    CHECK(mesh.group({Axis::dp}) == std::vector<int>{17, 19});
    CHECK(mesh.group({Axis::pod, Axis::dp}) == std::vector<int>{5, 7, 17, 19});
    CHECK(mesh.group({}) == std::vector<int>{17});
  }

  TEST_CASE("groups along an axis part the ranks") {
    for (Axis axis : {Axis::pod, Axis::pp, Axis::dp, Axis::cp, Axis::tp}) {
      std::vector<int> seen(24, 0);
      for (int r = 0; r < 24; ++r)
        for (int member : Mesh({2, 3, 2, 1, 2}, r, 24).group({axis})) ++seen[size_t(member)];
      for (int count : seen) CHECK(count == Mesh({2, 3, 2, 1, 2}, 0, 24).size(axis));
    }
  }

  TEST_CASE("a product that is not the number of ranks is refused with the arithmetic") {
    const auto make = [] { Mesh({1, 2, 3, 1, 1}, 0, 4); };
    CHECK_THROWS_WITH_AS(make(), doctest::Contains("pp 2 x dp 3 has 6 ranks, but 4 were launched"), Error);
    const auto zero = [] { Mesh({1, 1, 0, 1, 1}, 0, 1); };
    CHECK_THROWS_WITH_AS(zero(), doctest::Contains("mesh.dp is 0"), Error);
  }

  TEST_CASE("buckets cover every gradient once, from the end down, on the communication stream") {
    const auto device = Device::ghost({});
    const auto transport = Transport::ghost(0, 4);
    Collectives dp(*device, *transport, transport->group("dp", {0, 1, 2, 3}));
    const Tensor gradients = device->persistent("gradients", Purpose::gradients, Dtype::f32, {10000});
    const Tensor scalars = device->persistent("scalars", Purpose::gradients, Dtype::f32, {2});
    BucketReducer reducer(*device, dp, gradients, 9000, 2000 * 4);
    device->begin("train");
    reducer.begin();
    for (int64_t offset : {8500, 6100, 6000, 100, 0}) reducer.finished_down_to(offset);
    reducer.finish(scalars);
    device->end();
    const Plan plan = device->plan();
    const Program& p = plan.programs[0];
    std::vector<std::pair<int64_t, int64_t>> sent;
    for (const Instruction& i : p.instructions) {
      if (i.what != Instruction::What::op) continue;
      CHECK(i.stream == StreamId::communication);
      const Tensor t = p.operand(i, 0, plan.persistent);
      sent.emplace_back(int64_t(t.address) / 4, t.size());
    }
    const std::vector<std::pair<int64_t, int64_t>> expected{
        {7000, 2000}, {5000, 2000}, {3000, 2000}, {1000, 2000}, {0, 1000}, {9000, 1000}, {int64_t(40192) / 4, 2}};
    CHECK(sent == expected);
  }

  TEST_CASE("a group of one issues nothing") {
    const auto device = Device::ghost({});
    const auto transport = Transport::ghost(0, 1);
    Collectives dp(*device, *transport, transport->group("dp", {0}));
    const Tensor gradients = device->persistent("gradients", Purpose::gradients, Dtype::f32, {100});
    BucketReducer reducer(*device, dp, gradients, 100, 40);
    device->begin("train");
    reducer.begin();
    reducer.finish(gradients.slice(0, 0, 1));
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
