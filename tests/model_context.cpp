// Sequences whose positions several ranks share: who has which, what a causal mask leaves them, and what they issue.
#include "kernels/check.h"
#include "kernels/step_state.h"
#include "model/context_parallel.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <numeric>

using namespace triax;

namespace {

/// The operations of attention forward and backward over a group of ranks, as "kind on stream".
std::vector<std::string> issued(ContextExchange exchange, Dtype dtype, int ranks, int rank, int64_t B = 2) {
  const AttentionShape shape{B, 32, 8, 4, 16, 0.25f};
  const int64_t N = shape.batch * shape.sequence, all = exchange == ContextExchange::all_to_all ? ranks : 1;
  const auto device = Device::ghost({});
  const auto transport = Transport::ghost(rank, ranks);
  Groups groups(*device, *transport, Mesh({.cp = ranks}, rank, ranks));
  const auto rows = [&](int64_t heads) {
    return device->persistent("rows", Purpose::activations, dtype, {N, heads * shape.head_width});
  };
  const Tensor out = rows(8), dout = rows(8), qkv = rows(16), dqkv = rows(16),
               start = device->persistent("start", Purpose::inputs, Dtype::i32, {N * all}),
               state = device->persistent("state", Purpose::inputs, Dtype::u8, {sizeof(StepState)});
  ContextParallel context(*device, groups.along(Axes::ring(Axis::cp)), exchange, state);
  device->begin("train");
  groups.begin();
  context.backward(shape, dqkv, dout, out, qkv, start, context.forward(shape, out, qkv, start));
  device->end();
  const Plan plan = device->plan(); // checked
  std::vector<std::string> list;
  for (const Instruction& i : plan.programs[0].instructions)
    if (i.what == Instruction::What::op)
      list.push_back(concat(plan.programs[0].signatures[size_t(i.index)].op.kind->name, " on ", name_of(i.stream)));
  return list;
}

int64_t count(const std::vector<std::string>& list, const std::string& what) {
  return std::count(list.begin(), list.end(), what);
}

} // namespace

TEST_SUITE("model_context") {

  TEST_CASE("each position is one rank's, and around the ring all see as many keys") {
    for (const ContextExchange exchange : {ContextExchange::ring, ContextExchange::all_to_all})
      for (const int ranks : {1, 2, 3, 8}) {
        const int64_t length = 48;
        std::vector<int32_t> all;
        for (int rank = 0; rank < ranks; ++rank) {
          const std::vector<int32_t> own = context_positions(exchange, length, rank, ranks);
          CHECK(std::is_sorted(own.begin(), own.end()));
          all.insert(all.end(), own.begin(), own.end());
          int64_t seen = 0;
          for (const int32_t t : own) seen += t + 1;
          if (exchange == ContextExchange::ring) CHECK(seen == length * (length + 1) / 2 / ranks);
        }
        std::sort(all.begin(), all.end());
        std::vector<int32_t> want(size_t(length), 0);
        std::iota(want.begin(), want.end(), 0);
        CHECK(all == want);
      }
    CHECK(context_positions(ContextExchange::ring, 8, 0, 2) == std::vector<int32_t>{0, 1, 6, 7});
    CHECK(context_positions(ContextExchange::all_to_all, 8, 1, 2) == std::vector<int32_t>{4, 5, 6, 7});
    CHECK_THROWS_AS(context_positions(ContextExchange::ring, 10, 0, 2), Error);
  }

  TEST_CASE("all ranks issue the same; keys travel while others are computed with") {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
      for (const int ranks : {2, 3, 4}) {
        const auto list = issued(ContextExchange::ring, dtype, ranks, 0);
        for (int rank = 1; rank < ranks; ++rank) CHECK(list == issued(ContextExchange::ring, dtype, ranks, rank));
        CHECK(count(list, "attention_forward on compute") == ranks);
        CHECK(count(list, "attention_backward on compute") == ranks);
        CHECK(count(list, "attention_join on compute") == ranks - 1);
        CHECK(count(list, "shift on exchange") == 2 * (ranks - 1) + ranks); // keys twice, their gradients home
        // A step's keys set out before the step before it is computed.
        const auto at = [&](const std::string& what, int n) {
          auto found = list.begin();
          for (; n >= 0; --n) found = std::find(found, list.end(), what) + (n > 0);
          return found;
        };
        for (int step = 0; step + 1 < ranks; ++step)
          CHECK(at("shift on exchange", step) < at("attention_forward on compute", step));
      }
    for (const int64_t B : {1, 2})
      for (const int ranks : {2, 4}) {
        const auto list = issued(ContextExchange::all_to_all, Dtype::bf16, ranks, 0, B);
        CHECK(list == issued(ContextExchange::all_to_all, Dtype::bf16, ranks, ranks - 1, B));
        CHECK(count(list, "attention_forward on compute") == 1);
        CHECK(count(list, "all_to_all on exchange") == 4);
        CHECK(count(list, "rearrange on compute") == (B > 1 ? 12 : 8)); // one sequence needs no order restored
      }
    CHECK(issued(ContextExchange::ring, Dtype::bf16, 1, 0) ==
          std::vector<std::string>{"attention_forward on compute", "attention_backward on compute"});
  }

} // TEST_SUITE
