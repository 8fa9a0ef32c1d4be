// The recorded step: what a ghost writes down, what the checks find, how the arena is packed, and how a rank is held to
// its plan.
#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "kernels/host_memory.h"
#include <doctest/doctest.h>
#include <optional>

using namespace triax;

namespace {

constexpr int64_t kRows = 64, kColumns = 96;

/// A step on a ghost; `issue` gets the device and a persistent [64, 96] tensor.
template <class Issue> Plan record(Issue issue) {
  const auto device = Device::ghost({});
  const Tensor weights = device->persistent("weights", Purpose::weights, Dtype::f32, {kRows, kColumns});
  device->begin("step");
  issue(*device, weights);
  device->end();
  return device->plan();
}

template <class Issue> std::string refusal(Issue issue) {
  try {
    issue();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

bool mentions(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (text.find(word) == std::string::npos) {
      MESSAGE("missing '" << word << "' in: " << text);
      return false;
    }
  return true;
}

/// Writes any box; described alone, so for ghosts.
const OpKind kTouch{"touch", [](const Target&, const Op&) { return Description{}; }};
Op touch(const Tensor& t) { return Op(kTouch).write(t); }

Allocation scratch(Device& d, const char* name, int64_t n = 1024) {
  return d.allocate(name, Purpose::activations, Dtype::f32, {n});
}

} // namespace

TEST_SUITE("kernels_program") {

  TEST_CASE("two streams that touch the same bytes, one writing, without an event are named") {
    const auto issue = [](Device& d, const Tensor& w, bool ordered) {
      d.compute().run(fill(w, 1.0f));
      if (ordered) d.communication().wait(d.compute().record());
      d.communication().run(fill(w, 2.0f));
    };
    const std::string said = refusal([&] { record([&](Device& d, const Tensor& w) { issue(d, w, false); }); });
    CHECK(mentions(said, {"#0 compute fill", "#1 communication fill", "same bytes of weights", "no event"}));
    CHECK(refusal([&] { record([&](Device& d, const Tensor& w) { issue(d, w, true); }); }) == "");
  }

  TEST_CASE("an event recorded too early does not order what comes after it") {
    const std::string said = refusal([] {
      record([](Device& d, const Tensor& w) {
        const Event early = d.compute().record();
        d.compute().run(fill(w, 1.0f));
        d.communication().wait(early);
        d.communication().run(fill(w, 2.0f));
      });
    });
    CHECK(mentions(said, {"no event orders them"}));
  }

  TEST_CASE("order goes through a third stream") {
    record([](Device& d, const Tensor& w) {
      d.compute().run(fill(w, 1.0f));
      d.copy().wait(d.compute().record());
      d.communication().wait(d.copy().record());
      d.communication().run(fill(w, 2.0f));
    });
  }

  TEST_CASE("chunks of rows and of columns neither hide nor invent a conflict") {
    const auto both = [](const Tensor& a, const Tensor& b, Device& d) {
      d.compute().run(touch(a));
      d.communication().run(touch(b));
    };
    record([&](Device& d, const Tensor& w) { both(w.slice(1, 0, 48), w.slice(1, 48, 48), d); });
    record([&](Device& d, const Tensor& w) { both(w.slice(0, 0, 32), w.slice(0, 32, 32), d); });
    CHECK(refusal([&] {
            record([&](Device& d, const Tensor& w) { both(w.slice(1, 0, 49), w.slice(1, 48, 48), d); });
          }) != "");
    CHECK(refusal([&] {
            record([&](Device& d, const Tensor& w) { both(w.slice(0, 0, 33), w.slice(0, 32, 32), d); });
          }) != "");
    CHECK(refusal([&] { record([&](Device& d, const Tensor& w) { both(w.slice(1, 0, 1), w.slice(0, 63, 1), d); }); }) !=
          "");
  }

  TEST_CASE("strided boxes overlap exactly where a byte of both is the same") {
    const auto box = [](int64_t r, int64_t rows, int64_t c, int64_t columns) {
      return Tensor::dense(4096, Space::device, Dtype::f32, {7, 11}).slice(0, r, rows).slice(1, c, columns);
    };
    for (int64_t r = 0; r < 7; ++r)
      for (int64_t c = 0; c < 11; ++c)
        for (int64_t rows : {1, 2, 3})
          for (int64_t columns : {1, 4, 10}) {
            if (r + rows > 7 || c + columns > 11) continue;
            const bool shares = r < 4 && r + rows > 2 && c < 8 && c + columns > 5;
            CHECK(overlap(box(r, rows, c, columns), box(2, 2, 5, 3)) == shares);
            CHECK(overlap(box(2, 2, 5, 3), box(r, rows, c, columns)) == shares);
          }
    Tensor other = Tensor::dense(4096, Space::device, Dtype::f32, {5, 13}); // another pitch: decided row by row
    CHECK(overlap(other.slice(1, 0, 1), box(0, 1, 0, 1)));
    CHECK(!overlap(other.slice(0, 1, 1).slice(1, 0, 1), box(1, 1, 0, 2))); // element 13 against 11 and 12
    CHECK(overlap(other.slice(0, 1, 1).slice(1, 0, 1), box(1, 1, 0, 3)));
  }

  TEST_CASE("reading what nobody wrote, using what was released, and reaching past the end are named") {
    CHECK(mentions(refusal([] {
                     record([](Device& d, const Tensor&) {
                       const Allocation x = scratch(d, "orphan"), y = scratch(d, "sum");
                       d.compute().run(add(y, x, x));
                     });
                   }),
                   {"reads orphan before anything is written"}));
    CHECK(mentions(refusal([] {
                     record([](Device& d, const Tensor&) {
                       Allocation x = scratch(d, "gone");
                       const Tensor kept = x;
                       x.release();
                       d.compute().run(fill(kept, 0.0f));
                     });
                   }),
                   {"fill", "uses gone after its release"}));
    CHECK(mentions(refusal([] {
                     record([](Device& d, const Tensor& w) {
                       Tensor longer = w;
                       longer.dim[0] += 1;
                       d.compute().run(fill(longer, 0.0f));
                     });
                   }),
                   {"reaches past the end of weights"}));
  }

  TEST_CASE("buffers share bytes only where all uses are ordered") {
    const auto size_of = [](bool ordered) {
      return record([&](Device& d, const Tensor& w) {
               Allocation a = scratch(d, "a");
               d.compute().run(fill(a, 1.0f));
               d.communication().wait(d.compute().record());
               d.communication().run(copy(w.view({kRows * kColumns}).slice(0, 0, 1024), a));
               a.release();
               if (ordered) d.compute().wait(d.communication().record());
               const Allocation b = scratch(d, "b");
               d.compute().run(fill(b, 2.0f));
               d.compute().wait(d.communication().record());
             })
          .bytes[int(Space::device)];
    };
    const int64_t weights = kRows * kColumns * 4;
    CHECK(size_of(true) == weights + 4096);
    CHECK(size_of(false) == weights + 2 * 4096);
  }

  TEST_CASE("reuse of arena bytes that is not ordered is found by name") {
    Plan plan = record([](Device& d, const Tensor& w) {
      const Allocation a = scratch(d, "first"), b = scratch(d, "second");
      d.compute().run(fill(a, 1.0f));
      d.compute().run(fill(b, 1.0f));
      d.compute().run(copy(w.view({kRows * kColumns}).slice(0, 0, 1024), a));
    });
    CHECK(faults(plan.programs[0], plan.persistent).empty());
    plan.programs[0].buffers[1].offset = plan.programs[0].buffers[0].offset; // planted
    const auto found = faults(plan.programs[0], plan.persistent);
    REQUIRE(found.size() == 1);
    CHECK(mentions(found[0], {"first and second share arena bytes", "without an order"}));
    plan.programs[0].buffers[1].offset = 0; // planted: over the weights
    CHECK(mentions(faults(plan.programs[0], plan.persistent).at(0), {"second lies over persistent bytes"}));
  }

  TEST_CASE("the arena is as large as the peak here, and the peak is told by purpose") {
    const Plan plan = record([](Device& d, const Tensor& w) {
      for (int i = 0; i < 5; ++i) {
        const Allocation a = scratch(d, "a", 1000 * (i + 1)), b = d.allocate("b", Purpose::logits, Dtype::bf16, {500});
        d.compute().run(fill(a, 1.0f));
        d.compute().run(fill(b, 1.0f));
        d.compute().run(copy(w.view({kRows * kColumns}).slice(0, 0, 1000 * (i + 1)), a));
      }
    });
    const Plan::Peak peak = plan.peak(Space::device);
    CHECK(peak.bytes[int(Purpose::weights)] == kRows * kColumns * 4);
    CHECK(peak.bytes[int(Purpose::activations)] == 20224); // 5000 floats, to the next 256 bytes
    CHECK(peak.bytes[int(Purpose::logits)] == 1024);
    CHECK(peak.total == plan.bytes[int(Space::device)]);
  }

  TEST_CASE("repeated operations are stored once") {
    const Plan plan = record([](Device& d, const Tensor& w) {
      for (int i = 0; i < 10; ++i) d.compute().run(fill(w, 1.0f));
      d.compute().run(fill(w, 2.0f));
    });
    CHECK(plan.programs[0].instructions.size() == 11);
    CHECK(plan.programs[0].signatures.size() == 2);
  }

  TEST_CASE("a rank that leaves its plan is stopped before the first other operation runs") {
    const auto issue = [](Device& d, const Tensor& w, int variant) {
      d.begin("step");
      const Allocation a = scratch(d, "a", variant == 4 ? 4096 : 1024);
      d.compute().run(fill(a, 1.0f));
      if (variant != 5) d.compute().run(fill(w.slice(0, variant == 1 ? 1 : 0, 8), variant == 2 ? 3.0f : 2.0f));
      if (variant == 3) d.communication().run(fill(w.slice(0, 0, 8), 2.0f));
      d.compute().record();
      d.end();
    };
    const auto ghost = Device::ghost({});
    issue(*ghost, ghost->persistent("weights", Purpose::weights, Dtype::f32, {kRows, kColumns}), 0);
    const Plan plan = ghost->plan();
    const auto run = [&](int variant) {
      const auto device = Device::open({}, 1);
      device->follow(plan);
      const Tensor w = device->persistent("weights", Purpose::weights, Dtype::f32, {kRows, kColumns});
      return refusal([&] { issue(*device, w, variant); });
    };
    CHECK(run(0) == "");
    CHECK(mentions(run(1), {"leaves its plan", "step step", "instruction 2", "fill"}));       // another place
    CHECK(mentions(run(2), {"leaves its plan", "instruction 2"}));                            // another attribute
    CHECK(mentions(run(3), {"leaves its plan", "planned #3 compute record", "issued fill"})); // one more
    CHECK(mentions(run(4), {"leaves its plan", "instruction 0", "planned #0 allocate a"}));   // another size
    CHECK(mentions(run(5), {"leaves its plan", "instruction 2", "issued record"}));           // one less
  }

  TEST_CASE("releases in another order than planned are found, also at the end of a scope") {
    const auto issue = [](Device& d, const Tensor& w, bool swapped, bool goes_on) {
      d.begin("step");
      std::optional<Allocation> a = scratch(d, "a"), b = scratch(d, "b");
      d.compute().run(fill(*a, 1.0f));
      (swapped ? b : a).reset();
      (swapped ? a : b).reset();
      if (goes_on) d.compute().run(fill(w, 1.0f));
      d.end();
    };
    for (const bool goes_on : {false, true}) {
      const auto ghost = Device::ghost({});
      issue(*ghost, ghost->persistent("weights", Purpose::weights, Dtype::f32, {8}), false, goes_on);
      const Plan plan = ghost->plan();
      const auto run = [&](bool swapped) {
        const auto device = Device::open({}, 1);
        device->follow(plan);
        const Tensor w = device->persistent("weights", Purpose::weights, Dtype::f32, {8});
        return refusal([&] { issue(*device, w, swapped, goes_on); });
      };
      CHECK(run(false) == "");
      CHECK(mentions(run(true), {"leaves its plan", "instruction 3", "planned #3 release a", "issued release"}));
    }
  }

  TEST_CASE("a run takes the plan's arena and nothing else") {
    const auto ghost = Device::ghost({});
    ghost->persistent("weights", Purpose::weights, Dtype::f32, {8});
    ghost->begin("step");
    ghost->end();
    const auto device = Device::open({}, 1);
    device->follow(ghost->plan());
    CHECK(mentions(refusal([&] { device->persistent("weights", Purpose::weights, Dtype::f32, {8000}); }),
                   {"is not what the plan has next"}));
    CHECK_NOTHROW(device->persistent("weights", Purpose::weights, Dtype::f32, {8}));
    CHECK(mentions(refusal([&] { device->persistent("more", Purpose::weights, Dtype::f32, {8}); }),
                   {"is not what the plan has next"}));
    CHECK(
        mentions(refusal([&] { device->allocate("late", Purpose::weights, Dtype::f32, {8}); }), {"outside of a step"}));
    CHECK(mentions(refusal([&] { device->begin("other"); }), {"step other was not planned"}));
  }

  TEST_CASE("too little memory is said before anything is taken") {
    const auto ghost = Device::ghost({});
    ghost->persistent("huge", Purpose::weights, Dtype::f32, {int64_t(1) << 44});
    CHECK(mentions(refusal([&] { Device::open({}, 1)->follow(ghost->plan()); }),
                   {"not enough host memory", "67108864 MiB,", "triax plan"}));
    const auto device = Device::open({}, 1); // all kinds of memory are the host's, which its ranks share
    const int64_t have = available_host_memory();
    const auto rank = Device::ghost({});
    rank->persistent("weights", Purpose::weights, Dtype::u8, {have / 4});
    rank->persistent("staging", Purpose::inputs, Dtype::u8, {have / 4}, Space::pinned);
    CHECK(mentions(refusal([&] { device->follow(rank->plan(), 3); }),
                   {"not enough host memory", "for each of the 3 ranks on this host", "fewer ranks"}));
    rank->persistent("more", Purpose::inputs, Dtype::u8, {have / 4 * 3}, Space::host);
    CHECK(mentions(refusal([&] { Device::open({}, 1)->follow(rank->plan()); }), {"not enough host memory"}));
    const auto small = Device::ghost({});
    small->persistent("weights", Purpose::weights, Dtype::f32, {8});
    CHECK_NOTHROW(Device::open({}, 1)->follow(small->plan(), 3));
  }

  TEST_CASE("targets are parsed or refused by name") {
    CHECK(Target::parse("cpu").kind == Target::Kind::cpu);
    CHECK(Target::parse("sm_90a").kind == Target::Kind::cuda);
    CHECK(Target::parse("sm_120").name == "sm_120");
    for (const char* bad : {"", "gpu", "sm_", "sm_9x", "sm_a90"})
      CHECK(mentions(refusal([&] { Target::parse(bad); }), {"target"}));
  }

} // TEST_SUITE
