// comm/nccl.cpp, executed with ranks as threads through a stand-in for NCCL on host memory. None of it is a GPU's.
#include "comm/collective.h"
#include "tests/nccl_ranks.h"
#include <atomic>

using namespace triax;
using namespace triax::test;
using namespace std::chrono_literals;

namespace {

/// Bytes of a tensor, each telling rank and place.
struct Bytes {
  Bytes(Dtype type, int64_t elements, int rank = -1) : dtype(type), bytes(size_t(elements * bytes_of(type))) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = rank < 0 ? 255 : value(rank, int64_t(i));
  }
  static uint8_t value(int rank, int64_t i) { return uint8_t((rank * 37 + i * 11 + i / 251) % 250); }
  Tensor tensor() const {
    return Tensor::dense(uint64_t(bytes.data()), Space::device, dtype, {int64_t(bytes.size()) / bytes_of(dtype)});
  }
  /// Do bytes [at, at + n) come from `from` on of that rank?
  bool holds(int64_t at, int64_t n, int rank, int64_t from) const {
    for (int64_t i = 0; i < n; ++i)
      if (bytes[size_t(at + i)] != value(rank, from + i)) return false;
    return true;
  }
  Dtype dtype;
  std::vector<uint8_t> bytes;
};

void exchange(Rank& r, const Group& group, Dtype dtype, int64_t n, int64_t sequence) {
  const int64_t size = group.size(), piece = n * bytes_of(dtype);
  const Bytes mine(dtype, n, r.rank), pieces(dtype, size * n, r.rank);
  const Bytes all(dtype, size * n), received(dtype, size * n);
  r.nccl.all_gather(all.tensor(), mine.tensor(), group, sequence, r.stream);
  r.nccl.all_to_all(received.tensor(), pieces.tensor(), group, sequence + 1, r.stream);
  const Bytes before(dtype, n);
  r.nccl.shift(before.tensor(), mine.tensor(), group, sequence + 2, r.stream);
  r.synchronize();
  CHECK(before.holds(0, piece, group.ranks()[size_t(group.previous())], 0));
  for (int64_t p = 0; p < size; ++p) {
    CHECK(all.holds(p * piece, piece, group.ranks()[size_t(p)], 0));
    CHECK(received.holds(p * piece, piece, group.ranks()[size_t(p)], group.index() * piece));
  }
}

/// A GPU whose streams are the stand-in's. Collectives alone can be launched on it.
class StandinBackend final : public Backend {
public:
  uint64_t allocate(Space, int64_t bytes) override { return uint64_t(std::calloc(1, size_t(bytes))); }
  void deallocate(Space, uint64_t address, int64_t) override { std::free(reinterpret_cast<void*>(address)); }
  int64_t available(Space) const override { return 1 << 30; }
  void launch(StreamId, LaunchFn launch, const Op& op, const Tensor& scratch) override {
    launch(op, {stream_, 1, scratch});
  }
  void record(StreamId, int32_t) override {}
  void wait(StreamId, int32_t) override {}
  void fence() override {}
  void synchronize() override {
    standin().synchronize(stream_, 5000);
    if (check_) check_();
  }
  void enqueue_collectives(const std::function<void()>& check) override { check_ = check; }
  void copy(uint64_t to, uint64_t from, int64_t bytes) override {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size_t(bytes));
  }

private:
  void* stream_ = standin().make_stream();
  std::function<void()> check_;
};

} // namespace

TEST_SUITE("comm_nccl") {

  TEST_CASE("pieces reach their ranks") {
    for (const int ranks : {2, 3, 4})
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
        check_ranks(shape_of(1, ranks), [&](Rank& r) {
          const Group group = r.group(kDataAxes);
          for (const int64_t n : {1, 7, 4096, 100000}) exchange(r, group, dtype, n, 2 * n);
        });
  }

  TEST_CASE("a ring has a communicator of its own beside that of the same ranks") {
    check_ranks(shape_of(1, 2), [](Rank& r) { // on two streams, which one communicator cannot
      const Group data = r.group(kDataAxes), ring = r.group(Axes::ring(Axis::shard));
      CHECK(data.ranks() == ring.ranks());
      void* const other = standin().make_stream();
      const Bytes mine(Dtype::f32, 10, r.rank), before(Dtype::f32, 10), all(Dtype::f32, 20);
      r.nccl.shift(before.tensor(), mine.tensor(), ring, 0, other);
      r.nccl.all_gather(all.tensor(), mine.tensor(), data, 0, r.stream);
      r.synchronize();
      CHECK(standin().synchronize(other, 5000));
      CHECK(before.holds(0, 40, 1 - r.rank, 0));
      CHECK(all.holds(40, 40, 1, 0));
    });
  }

  TEST_CASE("a piece that lies where it is gathered stays there") {
    check_ranks(shape_of(1, 3), [](Rank& r) {
      const Group group = r.group(kDataAxes);
      Bytes all(Dtype::f32, 30);
      for (int64_t i = 0; i < 40; ++i) all.bytes[size_t(r.rank * 40 + i)] = Bytes::value(r.rank, i);
      r.nccl.all_gather(all.tensor(), all.tensor().slice(0, r.rank * 10, 10), group, 0, r.stream);
      r.synchronize();
      for (int p = 0; p < 3; ++p) CHECK(all.holds(p * 40, 40, p, 0));
    });
  }

  TEST_CASE("links carry in both directions, one communicator each") {
    check_ranks(shape_of(3, 1), [](Rank& r) {
      std::map<std::pair<int, bool>, Group> links;
      for (const bool back : {false, true})
        for (int first = 0; first < 3; ++first) links[{first, back}] = r.link(first, back);
      for (const int64_t n : {1, 33, 50000})
        for (auto& [link, group] : links) {
          const Bytes sent(Dtype::bf16, n, r.rank), received(Dtype::bf16, n);
          if (group.size() == 1) continue;
          group.index() == 0 ? r.nccl.send(sent.tensor(), group, n, r.stream)
                             : r.nccl.receive(received.tensor(), group, n, r.stream);
          r.synchronize();
          if (group.index() == 1) CHECK(received.holds(0, 2 * n, group.ranks()[0], 0));
        }
    });
  }

  TEST_CASE("groups of several axes share a device, and nothing waits for the host") {
    check_ranks(shape_of(1, 2, 2), [](Rank& r) {
      const Group tensor = r.group(kTensorAxes), data = r.group(kDataAxes), all = r.group({Axis::shard, Axis::tp});
      const Bytes mine(Dtype::f32, 1000, r.rank);
      std::vector<Bytes> out;
      for (int i = 0; i < 12; ++i) out.emplace_back(Dtype::f32, 4000);
      if (r.rank == 3) std::this_thread::sleep_for(50ms); // meanwhile the others launch all
      for (int i = 0; i < 12; ++i) {
        const Group& group = i % 3 == 0 ? tensor : i % 3 == 1 ? data : all;
        r.nccl.all_gather(out[size_t(i)].tensor().slice(0, 0, 1000 * group.size()), mine.tensor(), group, i / 3,
                          r.stream);
      }
      r.synchronize();
      for (int i = 0; i < 12; ++i) {
        const Group& group = i % 3 == 0 ? tensor : i % 3 == 1 ? data : all;
        for (int p = 0; p < group.size(); ++p) CHECK(out[size_t(i)].holds(p * 4000, 4000, group.ranks()[size_t(p)], 0));
      }
      if (r.rank == 3) CHECK(standin().most_waiting() > 8);
    });
  }

  TEST_CASE("memory is registered once for each communicator, also where two users share it") {
    const auto act = [](bool can) {
      return [can](Rank& r) {
        const char* library = can ? "nccl_standin" : "nccl_standin_2_18";
        const Group group = r.group(kDataAxes);
        const Bytes arena(Dtype::f32, 1000, r.rank), all(Dtype::f32, 2000);
        for (int i = 0; i < 2; ++i) r.nccl.register_memory(group, arena.tensor().address, 4000);
        CHECK(standin(library).registered() >= int(can));
        r.nccl.deregister_memory(group, arena.tensor().address);
        r.nccl.all_gather(all.tensor(), arena.tensor(), group, 0, r.stream);
        REQUIRE(standin(library).synchronize(r.stream, 5000));
        r.nccl.deregister_memory(group, arena.tensor().address);
      };
    };
    check_ranks(shape_of(1, 2), act(true));
    check_ranks(shape_of(1, 2), act(false), "nccl_standin_2_18"); // which cannot
  }

  TEST_CASE("collectives of a GPU's device go by NCCL where the transport has it") {
    const auto before = make_cuda_backend;
    make_cuda_backend = [](const Target&) -> std::unique_ptr<Backend> { return std::make_unique<StandinBackend>(); };
    check_ranks(shape_of(1, 2), [](Rank& r) {
      const auto transport = Transport::ghost(r.rank, 2);
      auto nccl = std::make_unique<Nccl>(library_at("nccl_standin"), r.rank, 5s);
      const Group group(kDataAxes, r.mesh.group(kDataAxes), r.mesh.index(kDataAxes), nullptr);
      nccl->join(group, [&](void* data, int64_t bytes) { r.board.spread(group, data, bytes); });
      transport->take(std::move(nccl));
      const auto device = Device::open(Target::parse("sm_90a"), 1);
      const Tensor x = device->persistent("x", Purpose::weights, Dtype::f32, {64});
      const Tensor y = device->persistent("y", Purpose::weights, Dtype::f32, {64});
      const std::vector<float> mine(64, float(r.rank + 1));
      device->write(x, mine.data());
      {
        Collectives data(*device, *transport, group, StreamId::communication);
        data.all_gather(y, x.slice(0, 0, 32));
        std::vector<float> got(64);
        device->read(y, got.data());
        CHECK(std::count(got.begin(), got.begin() + 32, 1.0f) == 32);
        CHECK(std::count(got.begin() + 32, got.end(), 2.0f) == 32);
        data.all_to_all(y, x);
        device->read(y, got.data());
        CHECK(std::count(got.begin() + 32, got.end(), 2.0f) == 32);
      }
    });
    make_cuda_backend = before;
  }

  TEST_CASE("ranks that disagree in size are told so") {
    const Outcome outcome = on_ranks(shape_of(1, 2), [](Rank& r) {
      const Group group = r.group(kDataAxes);
      const int64_t n = r.rank == 0 ? 100 : 99;
      const Bytes mine(Dtype::f32, n, r.rank), all(Dtype::f32, 2 * n);
      r.nccl.all_gather(all.tensor(), mine.tensor(), group, 12, r.stream);
      CHECK(standin().synchronize(r.stream, 5000));
      for (int i = 0; i < 50; ++i) std::this_thread::sleep_for(10ms), r.nccl.check();
    });
    check_failure(outcome, {"NCCL failed in group", "(ranks 0, 1)", "all_gather #12 of f32[", "invalid argument",
                            "ranks disagree: rank 0 is in all_gather of 100", "comm.transport=mpi"});
  }

  TEST_CASE("orders of launching that cross are a deadlock, which ends") {
    const Outcome outcome = on_ranks(shape_of(1, 2, 2), [](Rank& r) {
      const Group tensor = r.group(kTensorAxes), data = r.group(kDataAxes);
      const Bytes mine(Dtype::f32, 10, r.rank), one(Dtype::f32, 20), other(Dtype::f32, 20);
      const bool crossed = r.rank == 0 || r.rank == 3;
      r.nccl.all_gather(one.tensor(), mine.tensor(), crossed ? tensor : data, 0, r.stream);
      r.nccl.all_gather(other.tensor(), mine.tensor(), crossed ? data : tensor, 0, r.stream);
      CHECK(standin().synchronize(r.stream, 5000));
      for (int i = 0; i < 50; ++i) std::this_thread::sleep_for(10ms), r.nccl.check();
    });
    check_failure(outcome, {"NCCL failed in group", "all_gather #0", "orders of launching cross"});
  }

  TEST_CASE("an error in the middle ends all ranks and all communicators, which are not used again") {
    for (const int launch : {1, 7, 20}) {
      standin().fail_at(launch);
      std::atomic<int> refused = 0;
      const Outcome outcome = on_ranks(shape_of(1, 3), [&](Rank& r) {
        const Group data = r.group(kDataAxes), again = r.group({Axis::shard});
        const Bytes mine(Dtype::f32, 10, r.rank), all(Dtype::f32, 30);
        try {
          for (int i = 0; i < 1000; ++i) {
            r.nccl.all_gather(all.tensor(), mine.tensor(), i % 2 ? data : again, i, r.stream);
            r.synchronize();
          }
        } catch (const Error&) {
          CHECK(standin().synchronize(r.stream, 5000)); // the abort ended what was enqueued
          CHECK_THROWS_WITH_AS(r.nccl.send(mine.tensor(), Group(kDataAxes, {r.rank, 7}, 0, nullptr), 0, r.stream),
                               doctest::Contains("NCCL failed in group"), Error);
          r.nccl.deregister_memory(data, 0); // nothing is left to do
          ++refused;
          throw;
        }
      });
      CHECK(refused == 3);
      CHECK(std::string(standin().first_fault()) == "a planted failure");
      check_failure(outcome, {"NCCL failed in group", "(ranks 0, 1, 2)", "all_gather #", "a planted failure"});
    }
  }

  TEST_CASE("a rank that never joins is a time-out that names the group") {
    const Outcome outcome = on_ranks(
        shape_of(1, 3),
        [](Rank& r) {
          if (r.rank == 2) fail("the one of (ranks 0, 1, 2) that stays away");
          r.group(kDataAxes);
        },
        "nccl_standin", 300ms);
    // The first to give up aborts, which the other may see before its own time is over.
    const auto gave_up = [&](size_t r) {
      return outcome[r].find(concat("rank ", r,
                                    " has waited 0.3 s for the others of group pod+replica+shard+cp (ranks "
                                    "0, 1, 2) to join it in NCCL")) == 0;
    };
    CHECK((gave_up(0) || gave_up(1)));
    check_failure(outcome, {"(ranks 0, 1, 2)"});
  }

  TEST_CASE("a library that cannot serve is refused with the remedy") {
    const auto open = [](const std::string& library) { Nccl(library, 0, 1s); };
    CHECK_THROWS_WITH_AS(open("/nowhere/libnccl.so.2"), doctest::Contains("looked for /nowhere/libnccl.so.2: install"),
                         Error);
    CHECK_THROWS_WITH_AS(open(library_at("nccl_standin_2_17")), doctest::Contains("is NCCL 2.17.1, which is too old"),
                         Error);
    CHECK_THROWS_WITH_AS(open(library_at("nccl_standin_lacking")), doctest::Contains("has no function ncclCommAbort"),
                         Error);
    CHECK_THROWS_WITH_AS(open("libm.so.6"), doctest::Contains("has no function ncclGetVersion"), Error);
    CHECK(Nccl(library_at("nccl_standin"), 0, 1s).version() == "2.28.9");
    unsetenv("TRIAX_NCCL");
    CHECK(Nccl::library_from_environment() == "libnccl.so.2");
    setenv("TRIAX_NCCL", "/opt/nccl.so", 1);
    CHECK(Nccl::library_from_environment() == "/opt/nccl.so");
    unsetenv("TRIAX_NCCL");
  }

  TEST_CASE("ranks share a GPU where NCCL can and is told to") {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    CHECK(Nccl(library_at("nccl_standin_2_30"), 0, 1s).shares_gpus());
    CHECK_FALSE(Nccl(library_at("nccl_standin"), 0, 1s).shares_gpus());
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "0", 1);
    CHECK_FALSE(Nccl(library_at("nccl_standin_2_30"), 0, 1s).shares_gpus());
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    CHECK_FALSE(Nccl(library_at("nccl_standin_2_30"), 0, 1s).shares_gpus());

    const std::vector<uint64_t> apart{7, 8, 9}, together{7, 8, 7}, without{7, 0, 7};
    CHECK(Nccl::obstacle(apart, false) == "");
    CHECK(Nccl::obstacle(together, true) == "");
    CHECK(Nccl::obstacle(together, false).starts_with("ranks 0 and 2 share a GPU"));
    CHECK(Nccl::obstacle(without, true) == "rank 1 has no NCCL or no GPU");
  }

  TEST_CASE("NCCL is for GPUs") {
    const auto transport = Transport::ghost(0, 2);
    CHECK_THROWS_WITH_AS(transport->choose(TransportChoice::nccl, Target{}), doctest::Contains("the target is cpu"),
                         Error);
    CHECK(transport->choose(TransportChoice::automatic, Target{}) == "");
    CHECK(transport->nccl() == nullptr);
  }

} // TEST_SUITE
