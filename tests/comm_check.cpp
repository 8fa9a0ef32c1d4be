// The collectives of all ranks against each other: planted faults by name, and size.
#include "comm/collective_trace.h"
#include "kernels/elementwise.h"
#include "tests/collective_recorder.h"
#include <algorithm>
#include <chrono>
#include <doctest/doctest.h>

using namespace triax;

namespace {

/// What a layer of a tensor-parallel model issues forward or backward.
void layer_of_tensor_axis(Recorder& r, int64_t n) {
  for (int block = 0; block < 2; ++block) {
    r.gather(r.tensor, n);
    r.exchange(r.tensor, n);
  }
}

/// Layers whose weights are gathered ahead, several micro-batches, and gradients that are reduced.
void realistic_step(Recorder& r, int layers, int micro_batches, int64_t n = 64) {
  for (int m = 0; m < micro_batches; ++m)
    for (int pass = 0; pass < 2; ++pass)
      for (int layer = 0; layer < layers; ++layer) {
        r.data.compute_follows();
        r.data.follow_compute();
        if (pass == 0 || m == 0) r.gather(r.data, 2);
        r.tensor.follow_compute();
        layer_of_tensor_axis(r, n);
        r.tensor.compute_follows();
        if (pass == 1 && m == micro_batches - 1) r.exchange(r.data, 2);
      }
}

double seconds_of(const std::function<void()>& work) {
  const auto began = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

size_t collectives_of(const Plan& plan) {
  size_t count = 0;
  for (const Instruction& i : plan.programs[0].instructions)
    count += i.what == Instruction::What::op && is_collective(*plan.programs[0].signatures[size_t(i.index)].op.kind);
  return count;
}

} // namespace

TEST_SUITE("comm_check") {

  TEST_CASE("the groups of all ranks from one rank's mesh are those of each rank's") {
    MeshShape shape;
    shape.pod = 2, shape.pp = 3, shape.dp = 4, shape.tp = 4, shape.shard = 2, shape.copies = 2;
    shape.order = "dp,tp,cp,pod,pp";
    const int world = int(shape.ranks());
    std::vector<int> nodes;
    for (int rank = 0; rank < world; ++rank) nodes.push_back(rank * 7 % 5);
    const RankGrid grid(Mesh(shape, 11, world, nodes));
    for (uint32_t bits = 0; bits < 1u << kAxes; bits += 3)
      for (int rank = 0; rank < world; rank += 5) {
        const Mesh mesh(shape, rank, world, nodes);
        REQUIRE(grid.members(rank, Axes(bits)) == mesh.group(Axes(bits)));
        REQUIRE(grid.size(Axes(bits)) == mesh.size(Axes(bits)));
        for (int member : mesh.group(Axes(bits)))
          REQUIRE(grid.group_of(member, Axes(bits)) == grid.group_of(rank, Axes(bits)));
      }
    CHECK(grid.communicator({Axis::cp, Axis::tp}).bits() == Axes{Axis::tp}.bits());
  }

  TEST_CASE("ranks that issue the same are without fault, whether recorded once or each") {
    const MeshShape shape = mesh_of(4, 2);
    CHECK(faults_where(shape, [](int) { return [](Recorder& r) { realistic_step(r, 2, 2); }; }) == Sentences{});
    const Plan one = Recorder(shape, 3).step([](Recorder& r) { realistic_step(r, 2, 2); });
    CHECK(collective_faults(Mesh(shape, 5, 8), std::vector<const Plan*>(8, &one)) == Sentences{});
    CHECK(collective_faults(Mesh({}, 0, 1), std::vector<const Plan*>{&one}) != Sentences{}); // of groups of two ranks
  }

  TEST_CASE("planted: one rank skips a collective") {
    const auto issue = [](bool skips) {
      return [skips](Recorder& r) {
        r.gather(r.tensor);
        if (!skips) r.exchange(r.tensor);
        r.gather(r.tensor);
        r.gather(r.data);
      };
    };
    const Sentences found = faults_where(mesh_of(2, 4), [&](int rank) { return issue(rank == 6); });
    CHECK(found.size() == 1);
    CHECK(mentions(found, {"step train: the operations of tp+copy (ranks 4, 5, 6, 7) differ in kind",
                           "rank 6 issues #1 all_gather(write f32[128], read f32[32]) at ",
                           "ranks 4, 5, 7 issue #1 all_to_all(write f32[128], read f32[128]) at tests/comm_check.cpp",
                           "matched last: #0 all_gather"}));
    const Sentences last = faults_where(mesh_of(2, 4), [&](int rank) {
      return [rank](Recorder& r) {
        for (int i = 0; i < (rank == 6 ? 2 : 3); ++i) r.gather(r.tensor);
      };
    });
    CHECK(mentions(last, {"differ in number: rank 6 issues nothing more where ranks 4, 5, 7 issue #2 all_gather"}));
  }

  TEST_CASE("planted: one rank swaps two collectives, the first of the group") {
    const Sentences found = faults_where(mesh_of(4, 1), [](int rank) {
      return [rank](Recorder& r) {
        if (rank == 2) r.exchange(r.data), r.gather(r.data);
        if (rank != 2) r.gather(r.data), r.exchange(r.data);
      };
    });
    CHECK(mentions(found, {"pod+replica+shard+cp (ranks 0, 1, 2, 3)", "differ in kind", "rank 2 issues #0 all_to_all",
                           "ranks 0, 1, 3 issue #0 all_gather", "matched last: none"}));
  }

  TEST_CASE(
      "planted: one rank's shift has another size; rings and sums of the same ranks are not taken for each other") {
    const MeshShape shape{.cp = 4};
    const auto issue = [](int64_t n) {
      return [n](Recorder& r) {
        Collectives ring(*r.device, *r.transport, r.transport->group(r.mesh, Axes::ring(Axis::cp)), StreamId::exchange);
        const Allocation to = r.device->allocate("before", Purpose::communication, Dtype::f32, {n});
        ring.shift(to, r.x.slice(0, 0, n));
        r.gather(r.data);
        ring.shift(to, r.x.slice(0, 0, n));
      };
    };
    CHECK(faults_where(shape, [&](int) { return issue(32); }) == Sentences{});
    const Sentences found = faults_where(shape, [&](int rank) { return issue(rank == 2 ? 33 : 32); });
    CHECK(found.size() == 1);
    CHECK(mentions(found, {"ring of cp (ranks 0, 1, 2, 3) differ in size", "rank 2 issues #0 shift(write f32[33]",
                           "ranks 0, 1, 3 issue #0 shift(write f32[32]"}));
  }

  TEST_CASE("planted: one rank has the wrong size, another the wrong type") {
    const Sentences size = faults_where(mesh_of(2, 2), [](int rank) {
      return [rank](Recorder& r) {
        r.gather(r.data);
        r.gather(r.data, rank == 0 ? 32 : 33);
      };
    });
    CHECK(size.size() == 1);
    CHECK(mentions(size, {"(ranks 0, 2) differ in size", "#1 all_gather(write f32[64], read f32[32])",
                          "#1 all_gather(write f32[66], read f32[33])", "matched last: #0 all_gather"}));
    const Sentences type = faults_where(mesh_of(4, 1), [](int rank) {
      return [rank](Recorder& r) {
        const Dtype dtype = rank == 3 ? Dtype::bf16 : Dtype::f32;
        const Allocation in = r.device->allocate("in", Purpose::communication, dtype, {32}),
                         out = r.device->allocate("out", Purpose::communication, dtype, {128});
        r.device->compute().run(fill(in, 1.0f));
        r.data.follow_compute();
        r.data.all_gather(out, in);
      };
    });
    CHECK(mentions(type, {"differ in type", "rank 3 issues #0 all_gather(write bf16[128], read bf16[32])"}));
  }

  TEST_CASE("what goes wrong in many groups alike is said once") {
    const Plan usual = Recorder(mesh_of(64, 2), 0).step([](Recorder& r) { r.gather(r.tensor); });
    const Plan other = Recorder(mesh_of(64, 2), 1).step([](Recorder& r) { r.exchange(r.tensor); });
    std::vector<const Plan*> plans;
    for (int rank = 0; rank < 128; ++rank) plans.push_back(rank % 2 ? &other : &usual);
    const Sentences found = collective_faults(Mesh(mesh_of(64, 2), 0, 128), plans);
    CHECK(found.size() == 1);
    CHECK(mentions(found, {"tp+copy (ranks 0, 1)", "so in 63 more groups"}));
  }

  TEST_CASE("planted: crossed groups on one stream are a deadlock under both semantics") {
    const Sentences found = faults_where(
        mesh_of(2, 2),
        [](int rank) {
          return [rank](Recorder& r) { // each waits for a neighbour that waits for the next, around the square
            r.gather(r.data);
            const bool tensor_first = rank == 0 || rank == 3;
            if (tensor_first) r.gather(r.tensor);
            r.gather(r.data);
            if (!tensor_first) r.gather(r.tensor);
          };
        },
        StreamId::communication);
    CHECK(found.size() == 1);
    CHECK(mentions(found, {"deadlock on independent streams", "rank 0 is in tp+copy (ranks 0, 1) #0 all_gather",
                           "until rank 1 enters it; rank 1 is in pod+replica+shard+cp (ranks 1, 3) #1 all_gather",
                           "until rank 3 enters it; rank 3 is in tp+copy (ranks 2, 3) #0",
                           "until rank 2 enters it; rank 2 is in pod+replica+shard+cp (ranks 0, 2) #1",
                           "until rank 0 enters it; matched last: none of tp+copy, pod+replica+shard+cp #0 all_gather",
                           " at tests/comm_check.cpp:"}));
  }

  TEST_CASE("planted: crossed groups on two streams are a deadlock where a device does one at a time") {
    const auto issue = [](int rank, bool ordered) {
      return [rank, ordered](Recorder& r) {
        const bool tensor_first = rank % 2 == 0;
        if (tensor_first) r.gather(r.tensor);
        if (tensor_first && ordered) r.data.stream().wait(r.tensor.stream().record());
        r.gather(r.data);
        if (!tensor_first && ordered) r.tensor.stream().wait(r.data.stream().record());
        if (!tensor_first) r.gather(r.tensor);
      };
    };
    const auto square = [](int rank) { return rank == 0 || rank == 3 ? 0 : 1; };
    const Sentences free = faults_where(mesh_of(2, 2), [&](int rank) { return issue(square(rank), false); });
    CHECK(free.size() == 1);
    CHECK(mentions(free, {"deadlock where a device does one collective at a time in the order of issue (NCCL), not on "
                          "independent streams",
                          "rank 0 is in tp+copy (ranks 0, 1) #0", "until rank 1 enters it"}));
    const Sentences bound = faults_where(mesh_of(2, 2), [&](int rank) { return issue(square(rank), true); });
    CHECK(mentions(bound, {"deadlock on independent streams", "matched last: none of tp+copy"}));
  }

  TEST_CASE("planted: missing waits, by `faults` where bytes are shared, here where a communicator is") {
    const auto no_wait = [](bool waits) {
      return [waits](Recorder& r) {
        r.device->compute().run(fill(r.sent(r.data, 32), 1.0f));
        if (waits) r.data.follow_compute();
        r.gather(r.data);
      };
    };
    CHECK_THROWS_WITH_AS(Recorder(mesh_of(2, 1), 0).step(no_wait(false)),
                         doctest::Contains("compute fill(write f32[32]) at"), Error);
    CHECK_THROWS_WITH_AS(Recorder(mesh_of(2, 1), 0).step(no_wait(false)),
                         doctest::Contains("communication all_gather(write f32[64], read f32[32]) at"), Error);
    CHECK_THROWS_WITH_AS(Recorder(mesh_of(2, 1), 0).step(no_wait(false)),
                         doctest::Contains("touch the same bytes of y, one writes, and no event orders them"), Error);
    CHECK(faults_where(mesh_of(2, 1), [&](int) { return no_wait(true); }) == Sentences{});

    const auto two_streams = [](bool waits) { // shard and replica+shard are the same ranks
      return [waits](Recorder& r) {
        Collectives shard(*r.device, *r.transport, r.transport->group(r.mesh, {Axis::shard}), StreamId::exchange);
        r.gather(r.data);
        if (waits) shard.stream().wait(r.data.stream().record());
        const Allocation out = r.device->allocate("out", Purpose::communication, Dtype::f32, {128});
        shard.all_gather(out, r.sent(r.tensor, 32));
      };
    };
    const Sentences found = faults_where(mesh_of(4, 1), [&](int) { return two_streams(false); });
    CHECK(mentions(found, {"rank 0 issues pod+replica+shard+cp #0 all_gather", "on stream communication and shard #0",
                           "on stream exchange, both to ranks 0, 1, 2, 3, which is one communicator, and no event "
                           "orders them"}));
    CHECK(faults_where(mesh_of(4, 1), [&](int) { return two_streams(true); }) == Sentences{});
  }

  TEST_CASE("a step that does not begin its groups anew, and a group that the mesh does not have, are named") {
    Recorder r(mesh_of(2, 1), 0);
    r.step([](Recorder& recorder) { recorder.gather(recorder.data); });
    r.device->begin("evaluate");
    r.gather(r.data);
    r.device->end();
    const Plan plan = r.device->plan();
    const Sentences found = collective_faults(r.mesh, std::vector<const Plan*>(2, &plan));
    CHECK(mentions(found, {"step evaluate: rank 0 issues #1 all_gather", "where #0 is due"}));
    const Plan pair = Recorder(mesh_of(2, 1), 0).step([](Recorder& recorder) { recorder.gather(recorder.data); });
    CHECK(mentions(collective_faults(Mesh(mesh_of(4, 1), 0, 4), std::vector<const Plan*>(4, &pair)),
                   {"for a group of 2, but pod+replica+shard+cp has 4 ranks in the mesh"}));
  }

  TEST_CASE("collectives of a step in which ranks may differ are refused") {
    Recorder r(mesh_of(2, 1), 0);
    r.device->begin("initialise", Device::Ranks::differ);
    r.device->compute().run(fill(r.x, 1.0f));
    r.device->end();
    const Plan alone = r.device->plan();
    CHECK(collective_faults(r.mesh, std::vector<const Plan*>(2, &alone)) == Sentences{});
    r.device->begin("save", Device::Ranks::differ);
    r.gather(r.data);
    r.device->end();
    const Plan plan = r.device->plan();
    CHECK(mentions(collective_faults(r.mesh, std::vector<const Plan*>(2, &plan)),
                   {"step save: rank 0 issues pod+replica+shard+cp #0 all_gather", "there can be no collectives"}));
  }

  TEST_CASE("a kind of step that one rank does not plan is named") {
    Recorder two(mesh_of(2, 1), 0);
    two.step([](Recorder& r) { r.gather(r.data); });
    const Plan both = two.step([](Recorder& r) { r.gather(r.data); }, "evaluate");
    const Plan one = Recorder(mesh_of(2, 1), 1).step([](Recorder& r) { r.gather(r.data); });
    CHECK(collective_faults(two.mesh, std::vector<const Plan*>{&both, &one}) ==
          Sentences{"rank 1 plans no step evaluate, which others plan"});
  }

  TEST_CASE("16,384 ranks of one program") {
    const MeshShape shape = mesh_of(2048, 8);
    const Plan usual = Recorder(shape, 0).step([](Recorder& r) { realistic_step(r, 80, 4); });
    const Plan skips = Recorder(shape, 9).step([](Recorder& r) {
      realistic_step(r, 79, 4);
      r.gather(r.data);
    });
    const Mesh mesh(shape, 0, 16384);
    std::vector<const Plan*> plans(16384, &usual);
    Sentences found;
    const double all = seconds_of([&] { found = collective_faults(mesh, plans); });
    CHECK(found == Sentences{});
    plans[9] = &skips;
    const double one_deviates = seconds_of([&] { found = collective_faults(mesh, plans); });
    CHECK(mentions(found, {"rank 9 issues", "ranks 8, 10, 11, 12 and 3 more", "ranks 1, 17, 25, 33 and 2043 more"}));
    MESSAGE(collectives_of(usual), " collectives a rank: ", all, " s; with a rank that deviates: ", one_deviates, " s");
  }

  TEST_CASE("16,384 ranks of 16 programs, and of two that cross groups") {
    MeshShape shape = mesh_of(128, 8);
    shape.pp = 16;
    std::vector<Plan> stages;
    const auto issue = [](int stage, bool crosses) {
      return [stage, crosses](Recorder& r) {
        Collectives norm(*r.device, *r.transport, r.transport->group(r.mesh, {Axis::pp}), StreamId::communication);
        realistic_step(r, stage % 2 ? 5 : 6, 64, 64 + stage);
        const Allocation all = r.device->allocate("norms", Purpose::communication, Dtype::f32, {16});
        if (crosses) r.gather(r.data);
        norm.all_gather(all, r.sent(r.data, 1));
        if (!crosses) r.gather(r.data);
      };
    };
    for (int stage = 0; stage < 16; ++stage) stages.push_back(Recorder(shape, stage * 1024).step(issue(stage, false)));
    const Plan crossed[] = {Recorder(shape, 5 * 1024).step(issue(5, true)),
                            Recorder(shape, 6 * 1024).step(issue(6, true))};
    const Mesh mesh(shape, 0, 16384);
    std::vector<const Plan*> plans;
    for (int rank = 0; rank < 16384; ++rank) plans.push_back(&stages[size_t(rank / 1024)]);
    Sentences found;
    const double all = seconds_of([&] { found = collective_faults(mesh, plans); });
    CHECK(found == Sentences{});
    for (int t = 0; t < 8; ++t) { // of one data group, and of the next stage's others: around a square
      plans[size_t(5 * 1024 + t)] = &crossed[0];
      plans[size_t(6 * 1024 + 8 + t)] = &crossed[1];
    }
    const double some_cross = seconds_of([&] { found = collective_faults(mesh, plans); });
    CHECK(mentions(found, {"deadlock on independent streams", "rank 5120 is in pod+replica+shard+cp (ranks 5120, 5128",
                           "matched last"}));
    MESSAGE(collectives_of(stages[0]), " collectives a rank: ", all, " s; with ranks that cross: ", some_cross, " s");
  }

  TEST_CASE("links: what one end sends the other receives, in order") {
    MeshShape shape = mesh_of(2, 1);
    shape.pp = 4;
    // Two micro-batches forwards and back, one after the other.
    struct Faults {
      int sends_twice = -1, smaller = -1, crosses = -1;
    };
    const auto of_stage = [](int stage, const Faults& planted) {
      return [stage, planted](Recorder& r) {
        const auto link = [&](int first, bool back) {
          return Collectives(*r.device, *r.transport, r.transport->group(r.mesh, Axes::link(Axis::pp, first, back)),
                             StreamId::pipeline);
        };
        Collectives in = link((stage + 3) % 4, false), out = link(stage, false);
        Collectives in_back = link(stage, true), out_back = link((stage + 3) % 4, true);
        const Tensor x = r.x.slice(0, 0, planted.smaller == stage ? 32 : 64);
        for (int m = 0; m < 2; ++m) {
          if (planted.crosses == stage) in_back.receive(x);
          if (stage > 0) planted.sends_twice == stage ? out_back.send(x) : in.receive(x);
          if (stage < 3) out.send(x);
          if (stage < 3 && planted.crosses != stage) in_back.receive(x);
          if (stage > 0) out_back.send(x);
        }
      };
    };
    const auto found = [&](const Faults& planted) {
      return faults_where(shape, [&](int rank) { return of_stage(rank / 2, planted); });
    };
    CHECK(found({}) == Sentences{});
    CHECK(mentions(found({.sends_twice = 2}), {"link 1 of pp (ranks 2, 4)", "number", "rank 4 issues nothing more"}));
    CHECK(mentions(found({.smaller = 1}), {"differ in size", "send(", "receive("}));
    CHECK(mentions(found({.crosses = 1}), {"deadlock on independent streams", "link 1 of pp, back (ranks 4, 2)"}));
  }
}
