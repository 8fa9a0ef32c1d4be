// What the pipeline's stages send and receive: all of it, at its time, and in an order that cannot deadlock.
#include "tests/helpers.h"
#include "tests/pipeline_grid.h"
#include "train/pipeline.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <map>
#include <utility>

using namespace triax;
using namespace triax::test;

namespace {

using What = PipelineStep::What;
using Action = PipelineAction::What;
constexpr size_t kNone = SIZE_MAX;

/// What one stage issues, and which of it waits for which.
struct Stage {
  std::vector<PipelineAction> actions;
  std::vector<size_t> computes, transfers; ///< places in `actions`
  std::vector<size_t> partner;             ///< of a compute its receive, of a send its step; kNone for all else
  size_t computed = 0, transferred = 0;    ///< how many are done, in order

  size_t next(const std::vector<size_t>& places, size_t done) const {
    return done < places.size() ? places[done] : actions.size();
  }
  size_t next_compute() const { return next(computes, computed); }
  size_t next_transfer() const { return next(transfers, transferred); }
};

/// The step that makes what is sent, and the one that needs what is received.
PipelineStep producer_of(const PipelineSchedule& s, const PipelineTransfer& t) {
  const int part = t.chunk * s.stages + t.to_stage + (t.gradient ? 1 : -1);
  if (part < 0 || part >= s.stages * s.chunks || part % s.stages != t.from_stage) FAIL("a transfer from elsewhere");
  return {t.gradient ? What::backward : What::forward, t.micro_batch, part / s.stages};
}
PipelineStep consumer_of(const PipelineTransfer& t) {
  return {t.gradient ? What::backward : What::forward, t.micro_batch, t.chunk};
}

/// All stages, with the receives and sends of each paired with its steps; fails where one is missing.
std::vector<Stage> stages_of(const PipelineSchedule& s) {
  std::vector<Stage> stages{size_t(s.stages)};
  for (int n = 0; n < s.stages; ++n) {
    Stage& stage = stages[size_t(n)];
    stage.actions = pipeline_actions(s, n);
    const auto index = [&](const PipelineStep& step) {
      return (size_t(step.what) * size_t(s.chunks) + size_t(step.chunk)) * size_t(s.micro_batches) +
             size_t(step.micro_batch);
    };
    std::vector<size_t> places(3 * size_t(s.chunks) * size_t(s.micro_batches));
    stage.partner.assign(stage.actions.size(), kNone);
    const auto pair = [&](size_t from, size_t to) { return std::exchange(stage.partner[from], to) == kNone; };
    for (size_t i = 0; i < stage.actions.size(); ++i) {
      const PipelineAction& a = stage.actions[i];
      (a.what == Action::compute ? stage.computes : stage.transfers).push_back(i);
      if (a.what == Action::compute) places[index(a.step)] = i;
    }
    for (const size_t i : stage.transfers) {
      const PipelineAction& a = stage.actions[i];
      const bool send = a.what == Action::send;
      const bool good =
          a.transfer.from_stage != a.transfer.to_stage && n == (send ? a.transfer.from_stage : a.transfer.to_stage) &&
          (send ? pair(i, places[index(producer_of(s, a.transfer))]) : pair(places[index(consumer_of(a.transfer))], i));
      if (!good) FAIL(title_of(s), ": stage ", n, " has a transfer twice or of other stages");
    }
    size_t expected = 0; // every step has one transfer in and one out but at the ends of the model
    for (const size_t i : stage.computes) {
      const PipelineStep& step = stage.actions[i].step;
      const int part = step.chunk * s.stages + n, last = s.stages * s.chunks - 1;
      if (step.what == What::weights || s.stages == 1) continue;
      const bool receives = part != (step.what == What::forward ? 0 : last);
      expected += receives + (part != (step.what == What::forward ? last : 0));
      if (receives != (stage.partner[i] != kNone)) FAIL(title_of(s), ": stage ", n, " lacks a receive");
    }
    if (stage.transfers.size() != expected) FAIL(title_of(s), ": stage ", n, " lacks transfers");
  }
  return stages;
}

/// How a stage's transfers are done, always one at a time and in order, and both ends at once. apart: by somebody who
/// knows all of them from the start. issued: the computing thread hands them over as it comes to them. held_up: it does
/// them itself.
enum class Queue { apart, issued, held_up };

bool ends(std::vector<Stage> stages, Queue queue) {
  const auto ready = [&](const Stage& stage) { // its next transfer
    const size_t at = stage.next_transfer();
    const size_t producer = stage.partner[at];
    return (producer == kNone || producer < stage.next_compute()) &&
           (queue == Queue::apart || at < stage.next_compute());
  };
  for (bool moved = true; std::exchange(moved, false);)
    for (Stage& stage : stages) {
      for (size_t at; (at = stage.next_compute()) < stage.actions.size(); moved = true) {
        const size_t receive = stage.partner[at];
        if (receive != kNone && receive >= stage.next_transfer()) break;
        if (queue == Queue::held_up && stage.next_transfer() < at) break;
        ++stage.computed;
      }
      for (size_t at; (at = stage.next_transfer()) < stage.actions.size() && ready(stage); moved = true) {
        const PipelineAction& a = stage.actions[at];
        const bool send = a.what == Action::send;
        Stage& other = stages[size_t(send ? a.transfer.to_stage : a.transfer.from_stage)];
        const size_t there = other.next_transfer();
        if (there == other.actions.size() || !ready(other) || other.actions[there].transfer != a.transfer) break;
        if (other.actions[there].what != (send ? Action::receive : Action::send)) break;
        ++stage.transferred;
        ++other.transferred;
      }
    }
  return std::all_of(stages.begin(), stages.end(), [](const Stage& stage) {
    return stage.computed == stage.computes.size() && stage.transferred == stage.transfers.size();
  });
}

} // namespace

TEST_SUITE("train_pipeline_transfers") {

  TEST_CASE("transfers of a small schedule, in order") {
    const PipelineSchedule s = make_schedule(PipelineKind::one_f_one_b, 2, 3);
    const auto actions = [&](int stage) {
      std::string text;
      for (const PipelineAction& a : pipeline_actions(s, stage)) {
        const std::string what = a.what == Action::send ? "send " : "receive ";
        if (a.what == Action::compute)
          text += said(a.step, 1) + "; ";
        else
          text += concat(what, a.transfer.gradient ? "gradient " : "output ", a.transfer.micro_batch, "; ");
      }
      return text;
    };
    CHECK(pipeline_actions(make_schedule(PipelineKind::one_f_one_b, 1, 3), 0).size() == 6); // one stage: only steps
    CHECK(actions(0) == "f0; send output 0; f1; send output 1; receive gradient 0; b0; "
                        "f2; send output 2; receive gradient 1; b1; receive gradient 2; b2; ");
    CHECK(actions(1) == "receive output 0; f0; receive output 1; b0; send gradient 0; "
                        "f1; b1; receive output 2; send gradient 1; f2; b2; send gradient 2; ");
  }

  TEST_CASE("transfers end however they are queued, each once on both ends and at its time") {
    std::map<std::string, double> most_waiting; // receives issued whose step has not begun
    each_schedule([&](const PipelineSchedule& s) {
      const std::vector<Stage> stages = stages_of(s);
      for (const Queue queue : {Queue::apart, Queue::issued, Queue::held_up})
        if (!ends(stages, queue)) FAIL(title_of(s), ": transfers deadlock, queued in way ", int(queue));

      const ScheduleTiming timing = time_schedule(s);
      std::vector<double> made[2]; // when: forward and backward, by part of the model and micro-batch
      for (auto& m : made) m.assign(size_t(s.stages) * size_t(s.chunks) * size_t(s.micro_batches), 0);
      const auto index = [&](int n, const PipelineStep& step) {
        return size_t(step.chunk * s.stages + n) * size_t(s.micro_batches) + size_t(step.micro_batch);
      };
      const bool apart = s.kind == PipelineKind::zero_bubble;
      const auto cost = [&](What what) { return what == What::backward && !apart ? 2.0 : 1.0; };
      for (int n = 0; n < s.stages; ++n)
        for (size_t i = 0; i < s.steps[size_t(n)].size(); ++i) {
          const PipelineStep& step = s.steps[size_t(n)][i];
          if (step.what == What::weights) continue;
          made[step.what == What::backward][index(n, step)] = timing.begin[size_t(n)][i] + cost(step.what);
        }
      for (int n = 0; n < s.stages; ++n) {
        const Stage& stage = stages[size_t(n)];
        std::vector<PipelineStep> steps;
        double last = 0, last_transfer = 0; // when the step, and the transfer, before ended
        int waiting = 0;
        for (size_t i = 0; i < stage.actions.size(); ++i) {
          const PipelineAction& a = stage.actions[i];
          if (a.what == Action::compute) {
            last = timing.begin[size_t(n)][steps.size()] + cost(a.step.what);
            steps.push_back(a.step);
            waiting -= stage.partner[i] != kNone;
            continue;
          }
          const PipelineStep producer = producer_of(s, a.transfer);
          const double time = made[a.transfer.gradient][index(a.transfer.from_stage, producer)];
          const size_t next = steps.size(); // the step issued next ends later than the transfer's time
          const double next_end = next < timing.begin[size_t(n)].size()
                                      ? timing.begin[size_t(n)][next] + cost(s.steps[size_t(n)][next].what)
                                      : INFINITY;
          const bool good = time >= last && time < next_end && time >= last_transfer &&
                            (a.what == Action::receive || (time == last && steps.back() == producer));
          if (!good) FAIL(title_of(s), ": stage ", n, " has a transfer of time ", time, " behind a step to ", last);
          last_transfer = time;
          waiting += a.what == Action::receive;
          double most = s.kind == PipelineKind::gpipe ? 1 : 2;
          if (s.chunks > 1) most = std::max(4.0, 1 + s.stages / 3.0);
          if (waiting > most) FAIL(title_of(s), ": stage ", n, " has ", waiting, " receives waiting");
          double& highest = most_waiting[name_of(s.kind)];
          highest = std::max<double>(highest, waiting);
        }
        if (steps != s.steps[size_t(n)]) FAIL(title_of(s), ": stage ", n, " has other steps than its schedule");
      }
    });
    CHECK(most_waiting["gpipe"] == 1);
    CHECK(most_waiting["1f1b"] == 2);
    CHECK(most_waiting["zb-h1"] == 2);
    CHECK(most_waiting["interleaved"] == 6);
  }

  TEST_CASE("transfers in another order do deadlock, so that the test above can fail") {
    std::vector<Stage> stages = stages_of(make_schedule(PipelineKind::one_f_one_b, 2, 4));
    REQUIRE(ends(stages, Queue::apart));
    std::swap(stages[0].transfers[0], stages[0].transfers[1]);
    CHECK(!ends(stages, Queue::apart));
  }

} // TEST_SUITE
