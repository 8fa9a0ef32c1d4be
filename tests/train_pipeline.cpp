// The pipeline's schedules: their steps, times and memory, their faults, and the layers of each stage.
#include "tests/helpers.h"
#include "tests/pipeline_grid.h"
#include "train/pipeline.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <sstream>

using namespace triax;
using namespace triax::test;

namespace {

using What = PipelineStep::What;

std::string list_of(const PipelineSchedule& s, int stage) {
  std::string text;
  for (const PipelineStep& step : s.steps[size_t(stage)]) text += (text.empty() ? "" : " ") + said(step, s.chunks);
  return text;
}

/// A schedule of one chunk from such lists, by stage.
PipelineSchedule read(PipelineKind kind, int micro_batches, const std::vector<std::string>& stages) {
  PipelineSchedule s{kind, int(stages.size()), micro_batches, 1, {}};
  for (const std::string& text : stages) {
    std::istringstream words(text);
    s.steps.emplace_back();
    for (std::string word; words >> word;)
      s.steps.back().push_back({What(std::string("fbw").find(word[0])), std::stoi(word.substr(1)), 0});
  }
  return s;
}

std::string faults_of(const PipelineSchedule& s) { return listed(schedule_faults(s)); }

bool multiple(const PipelineSchedule& s) { return s.chunks == 1 || s.micro_batches % s.stages == 0; }

} // namespace

TEST_SUITE("train_pipeline") {

  TEST_CASE("small schedules, step by step") {
    const auto check = [](const PipelineSchedule& s, const std::vector<std::string>& expected) {
      CAPTURE(name_of(s.kind));
      REQUIRE(s.steps.size() == expected.size());
      for (int stage = 0; stage < s.stages; ++stage) CHECK(list_of(s, stage) == expected[size_t(stage)]);
    };
    check(make_schedule(PipelineKind::gpipe, 2, 3), {"f0 f1 f2 b0 b1 b2", "f0 f1 f2 b0 b1 b2"});
    check(make_schedule(PipelineKind::one_f_one_b, 3, 4),
          {"f0 f1 f2 b0 f3 b1 b2 b3", "f0 f1 b0 f2 b1 f3 b2 b3", "f0 b0 f1 b1 f2 b2 f3 b3"});
    check(make_schedule(PipelineKind::one_f_one_b, 3, 1), {"f0 b0", "f0 b0", "f0 b0"});
    check(make_schedule(PipelineKind::zero_bubble, 3, 4),
          {"f0 f1 f2 b0 w0 f3 b1 w1 b2 w2 b3 w3", "f0 f1 b0 f2 b1 w0 f3 b2 w1 b3 w2 w3",
           "f0 b0 f1 b1 f2 b2 w0 f3 b3 w1 w2 w3"});
    check(make_schedule(PipelineKind::interleaved, 2, 4, 2),
          {"f0.0 f1.0 f0.1 f1.1 f2.0 b0.1 f3.0 b1.1 f2.1 b0.0 f3.1 b1.0 b2.1 b3.1 b2.0 b3.0",
           "f0.0 f1.0 f0.1 b0.1 f1.1 b1.1 f2.0 b0.0 f3.0 b1.0 f2.1 b2.1 f3.1 b3.1 b2.0 b3.0"});
    check(make_schedule(PipelineKind::interleaved, 2, 3, 2), // the same, without micro-batch 3
          {"f0.0 f1.0 f0.1 f1.1 f2.0 b0.1 b1.1 f2.1 b0.0 b1.0 b2.1 b2.0",
           "f0.0 f1.0 f0.1 b0.1 f1.1 b1.1 f2.0 b0.0 b1.0 f2.1 b2.1 b2.0"});
    for (int m = 1; m <= 5; ++m)
      CHECK(make_schedule(PipelineKind::interleaved, 4, m).steps ==
            make_schedule(PipelineKind::one_f_one_b, 4, m).steps);
  }

  TEST_CASE("one stage") {
    CHECK(list_of(make_schedule(PipelineKind::gpipe, 1, 3), 0) == "f0 f1 f2 b0 b1 b2");
    CHECK(list_of(make_schedule(PipelineKind::one_f_one_b, 1, 3), 0) == "f0 b0 f1 b1 f2 b2");
    CHECK(list_of(make_schedule(PipelineKind::interleaved, 1, 3), 0) == "f0 b0 f1 b1 f2 b2");
    CHECK(list_of(make_schedule(PipelineKind::zero_bubble, 1, 3), 0) == "f0 b0 w0 f1 b1 w1 f2 b2 w2");
    CHECK(list_of(make_schedule(PipelineKind::interleaved, 1, 2, 2), 0) == "f0.0 f0.1 b0.1 f1.0 b0.0 f1.1 b1.1 b1.0");
  }

  TEST_CASE("no schedule has faults, and each holds as many micro-batches as it should") {
    each_schedule([](const PipelineSchedule& s) {
      const std::string faults = faults_of(s);
      if (!faults.empty()) FAIL(title_of(s), ": ", faults);
      const std::vector<int> most = time_schedule(s).most_in_flight;
      const int p = s.stages, m = s.micro_batches, v = s.chunks;
      for (int stage = 0; stage < p; ++stage) {
        int published = m;
        if (s.kind == PipelineKind::one_f_one_b || (s.kind == PipelineKind::interleaved && v == 1))
          published = std::min(m, p - stage);
        else if (s.kind == PipelineKind::interleaved)
          published = std::min(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1);
        else if (s.kind == PipelineKind::zero_bubble)
          published = std::min(m, p);
        const InFlight formula = in_flight_formula(s, stage);
        const int measured = most[size_t(stage)];
        const bool good = formula.most == published && formula.exact == multiple(s) &&
                          (formula.exact ? measured == published : measured <= published);
        if (!good) FAIL(title_of(s), ", stage ", stage, ": ", measured, " in flight, not ", published);
      }
    });
  }

  TEST_CASE("the bubble is the published one, or within its bounds") {
    const StepCosts all_costs[] = {{1, 1, 1, 0},   {1, 1.3, 0.7, 0}, {2, 1, 1, 0},       {1, 2, 0.5, 0},
                                   {1, 1, 1.5, 0}, {0.4, 1, 1, 0},   {1.5, 0.6, 1.2, 0}, {1, 1, 0, 0}};
    each_schedule([&](const PipelineSchedule& s) {
      const double p = s.stages, m = s.micro_batches, v = s.chunks;
      for (const StepCosts& c : all_costs) {
        const double formula = bubble_formula(s, c), bubble = time_schedule(s, c).bubble;
        const double step = c.forward + c.backward + c.weights;
        double most = formula;
        if (s.kind == PipelineKind::zero_bubble && m < p) most = (p - 1) * (c.forward + c.backward) / (m * step);
        if (!multiple(s)) most = (std::ceil(m / p) * p - m + (p - 1) / v) / m;
        if (bubble < formula - 1e-9 || bubble > most + 1e-9)
          FAIL(title_of(s), ", F ", c.forward, " B ", c.backward, " W ", c.weights, ": bubble ", bubble,
               ", but between ", formula, " and ", most, " was expected");
        double published = (p - 1) / (m * v);
        if (s.kind == PipelineKind::zero_bubble) published *= (c.forward + c.backward - c.weights) / step;
        if (c.weights > std::min(c.forward, c.backward) && s.kind == PipelineKind::zero_bubble) continue;
        if (std::fabs(formula - published) > 1e-12) FAIL(title_of(s), ": formula ", formula, " for ", published);
      }
    });
    CHECK(bubble_formula(make_schedule(PipelineKind::zero_bubble, 3, 4), {1, 1, 1.5, 0}) ==
          doctest::Approx(2.0 / (4 * 3.5)));
  }

  TEST_CASE("times of each step, with transfers between stages") {
    const PipelineSchedule s = make_schedule(PipelineKind::one_f_one_b, 2, 2);
    const ScheduleTiming timing = time_schedule(s, {1, 2, 1, 0.5});
    CHECK(timing.begin[0] == std::vector<double>{0, 1, 6, 10}); // f0 f1 b0 b1
    CHECK(timing.begin[1] == std::vector<double>{1.5, 2.5, 5.5, 6.5});
    CHECK(timing.makespan == 13);
    CHECK(timing.bubble == 5.0 / 8);
    // within a stage nothing is sent
    CHECK(time_schedule(make_schedule(PipelineKind::interleaved, 1, 4, 2), {1, 1, 1, 9}).bubble == 0);
    each_schedule([](const PipelineSchedule& any) {
      const double slower = time_schedule(any, {1, 1, 1, 0.25}).makespan, faster = time_schedule(any).makespan;
      if (any.stages == 1 ? slower != faster : slower <= faster) FAIL(title_of(any), ": ", faster, " to ", slower);
    });
  }

  TEST_CASE("planted faults are named by stage, micro-batch and chunk") {
    const auto kind = PipelineKind::one_f_one_b, zb = PipelineKind::zero_bubble;
    const std::string good[] = {"f0 f1 b0 b1", "f0 b0 f1 b1"};
    REQUIRE(faults_of(read(kind, 2, {good[0], good[1]})).empty());
    CHECK(faults_of(read(kind, 2, {good[0], "f0 b0 f1 f1 b1"})) ==
          "stage 1: the forward step of micro-batch 1, chunk 0 stands there more than once");
    CHECK(faults_of(read(kind, 2, {good[0], "f0 b0 f1"})) ==
          "stage 1: the backward step of micro-batch 1, chunk 0 is missing");
    CHECK(faults_of(read(kind, 2, {good[0], "b0 f0 f1 b1"})) ==
          "stage 1: the backward step of micro-batch 0, chunk 0 stands before its forward step");
    CHECK(has(faults_of(read(kind, 2, {good[0], "f1 b1 f0 b0"})),
              "stage 1: the forward step of micro-batch 0, chunk 0 stands behind that of micro-batch 1"));
    CHECK(faults_of(read(kind, 2, {"f0 f1 b1 b0", "f0 f1 b0 b1"})) ==
          "stage 0: the backward step of micro-batch 0, chunk 0 stands behind that of micro-batch 1");
    CHECK(faults_of(read(kind, 2, {good[0], good[1] + " f2"})) ==
          "stage 1: the forward step of micro-batch 2, chunk 0 does not exist in 1f1b of 2 micro-batches and 1 chunks");
    CHECK(has(faults_of(read(kind, 2, {good[0], good[1] + " w1"})),
              "stage 1: the weights step of micro-batch 1, chunk 0 does not exist"));
    CHECK(faults_of(read(zb, 2, {"f0 f1 b0 w0 b1 w1", "f0 b0 f1 w1 b1 w0"})) ==
          "stage 1: the weights step of micro-batch 0, chunk 0 stands behind that of micro-batch 1, "
          "stage 1: the weights step of micro-batch 1, chunk 0 stands before its backward step");
    CHECK(has(faults_of(read(zb, 2, {good[0], good[1]})),
              "stage 0: the weights step of micro-batch 1, chunk 0 is missing"));

    // each stage by itself is right, but stage 1 wants micro-batch 1 before it lets go of the gradient of 0
    const PipelineSchedule deadlock = read(kind, 2, {"f0 b0 f1 b1", "f0 f1 b0 b1"});
    CHECK(faults_of(deadlock) == "stage 0: the backward step of micro-batch 0, chunk 0 waits for ever for "
                                 "stage 1: the backward step of micro-batch 0, chunk 0, "
                                 "stage 1: the forward step of micro-batch 1, chunk 0 waits for ever for "
                                 "stage 0: the forward step of micro-batch 1, chunk 0");
    CHECK(has(error_of([&] { time_schedule(deadlock); }), "the schedule deadlocks: stage 0: the backward step"));
    CHECK(has(error_of([&] { pipeline_actions(deadlock, 0); }), "the schedule deadlocks"));

    PipelineSchedule short_one = make_schedule(kind, 2, 2);
    short_one.steps.pop_back();
    CHECK(has(faults_of(short_one), "has steps for 1 stages"));
  }

  TEST_CASE("every step left out, doubled, or exchanged with the next of its kind is named") {
    for (const PipelineKind kind : kKinds) {
      const PipelineSchedule s = make_schedule(kind, 3, 4, kind == PipelineKind::interleaved ? 2 : 1);
      for (size_t stage = 0; stage < 3; ++stage)
        for (size_t i = 0; i < s.steps[stage].size(); ++i) {
          const PipelineStep step = s.steps[stage][i];
          const auto spoilt = [&](const std::function<void(std::vector<PipelineStep>&)>& spoil) {
            PipelineSchedule other = s;
            spoil(other.steps[stage]);
            return faults_of(other);
          };
          const auto named = [&](int micro_batch) {
            return concat("stage ", stage, ": the ",
                          step.what == What::forward    ? "forward"
                          : step.what == What::backward ? "backward"
                                                        : "weights",
                          " step of micro-batch ", micro_batch, ", chunk ", step.chunk);
          };
          const std::string name = named(step.micro_batch);
          CHECK(has(spoilt([&](auto& steps) { steps.erase(steps.begin() + long(i)); }), name + " is missing"));
          CHECK(has(spoilt([&](auto& steps) { steps.push_back(step); }), name + " stands there more than once"));
          if (step.micro_batch == 3) continue;
          const std::string exchanged = spoilt([&](auto& steps) {
            PipelineStep next = step;
            ++next.micro_batch;
            std::swap(steps[i], *std::find(steps.begin(), steps.end(), next));
          });
          CHECK(has(exchanged, named(step.micro_batch) + " stands behind that of micro-batch"));
        }
    }
  }

  TEST_CASE("a picture") {
    CHECK(draw(make_schedule(PipelineKind::one_f_one_b, 2, 3)) ==
          "1f1b, 2 stages, 3 micro-batches, bubble 33.3%; 0-9 forward, a-j backward\n"
          "stage 0 01..aa2bb.cc\n"
          "stage 1 .0aa1bb2cc..\n");
    CHECK(draw(make_schedule(PipelineKind::zero_bubble, 2, 2), 14) == "zb-h1, 2 stag>\n"
                                                                      "stage 0 01.aA>\n"
                                                                      "stage 1 .0a1b>\n");
    CHECK(has(draw(make_schedule(PipelineKind::interleaved, 2, 12, 2)), "12 micro-batches, 2 chunks a stage, bubble"));
    std::istringstream lines(draw(make_schedule(PipelineKind::gpipe, 16, 64), 100));
    for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
  }

  TEST_CASE("layers are split evenly, embedding and head counting as a layer each") {
    const auto counts = [](const std::vector<LayerRange>& ranges) {
      std::string text;
      int64_t first = 0;
      for (const LayerRange& r : ranges) {
        CHECK(r.first == first);
        CHECK(r.embedding == (&r == &ranges.front()));
        CHECK(r.head == (&r == &ranges.back()));
        first += r.count;
        text += concat(text.empty() ? "" : ",", r.count);
      }
      return text;
    };
    CHECK(counts(split_layers(30, 4, 1, "")) == "7,8,8,7");
    CHECK(counts(split_layers(30, 1, 1, "")) == "30");
    CHECK(counts(split_layers(30, 2, 1, "")) == "15,15");
    CHECK(counts(split_layers(31, 4, 1, "")) == "7,8,9,7"); // 33 pieces
    CHECK(counts(split_layers(33, 4, 1, "")) == "8,9,9,7");
    CHECK(counts(split_layers(14, 4, 2, "")) == "1,2,2,2,2,2,2,1");
    CHECK(counts(split_layers(2, 4, 1, "")) == "0,1,1,0");
    CHECK(counts(split_layers(18, 4, 1, "4,5,5,4")) == "4,5,5,4");
    CHECK(counts(split_layers(18, 2, 2, "0,9,9,0")) == "0,9,9,0");
    for (int64_t layers = 1; layers <= 40; ++layers)
      for (int stages = 1; stages <= 8; ++stages)
        for (int chunks = 1; chunks <= 4 && stages * chunks <= layers + 2; ++chunks) {
          int64_t sum = 0, least = INT64_MAX, most = 0;
          for (const LayerRange& r : split_layers(layers, stages, chunks, "")) {
            sum += r.count;
            least = std::min(least, r.count + r.embedding + r.head);
            most = std::max(most, r.count + r.embedding + r.head);
          }
          if (sum != layers || least < 1 || most > least + 1) FAIL(layers, " layers on ", stages, " x ", chunks);
        }
  }

  TEST_CASE("layers that cannot be split so") {
    const auto error = [](int64_t layers, int stages, int chunks, const std::string& layout) {
      return error_of([&] { split_layers(layers, stages, chunks, layout); });
    };
    CHECK(error(3, 3, 2, "") ==
          "model.layers 3 + embedding + head = 5 pieces, too few for mesh.pp 3 x pipeline.chunks 2 = 6 chunks; lower "
          "mesh.pp or pipeline.chunks to a product of at most 5");
    CHECK(error(30, 4, 1, "4,5,5,4") ==
          "pipeline.layout '4,5,5,4' adds up to 4 + 5 + 5 + 4 = 18 layers, but model.layers is 30");
    CHECK(error(9, 4, 1, "4,5") ==
          "pipeline.layout '4,5' has 2 numbers, but mesh.pp 4 x pipeline.chunks 1 = 4 chunks need one each");
    CHECK(has(error(9, 4, 1, "9"), "has 1 number, but"));
    CHECK(has(error(9, 2, 2, "4,0,1,4"), "leaves chunk 0 of stage 1 (number 2 of 4) with nothing"));
    for (const char* text : {"4,,5", "4,5,", ",9", "4;5", "4, 5", "-1,10", "4,x", "99999999999,1"})
      CHECK(has(error(9, 2, 1, text), concat("pipeline.layout is '", text, "', but must be numbers of layers")));
    CHECK(has(error(0, 2, 1, ""), "model.layers is 0, mesh.pp 2 and pipeline.chunks 1; each is at least 1"));
    CHECK(has(error(4, 0, 1, ""), "mesh.pp 0"));
  }

  TEST_CASE("schedules that there are not") {
    const auto error = [](PipelineKind kind, int stages, int micro_batches, int chunks) {
      return error_of([&] { make_schedule(kind, stages, micro_batches, chunks); });
    };
    CHECK(has(error(PipelineKind::gpipe, 0, 1, 1), "mesh.pp is 0"));
    CHECK(has(error(PipelineKind::gpipe, 1, 0, 1), "0 micro-batches"));
    CHECK(has(error(PipelineKind::interleaved, 1, 1, 0), "pipeline.chunks is 0"));
    CHECK(error(PipelineKind::zero_bubble, 2, 2, 2) ==
          "pipeline.chunks is 2, but pipeline.schedule is zb-h1, which has 1 chunk a stage; set pipeline.chunks to 1, "
          "or pipeline.schedule to interleaved");
    CHECK(has(error_of([] { time_schedule(make_schedule(PipelineKind::gpipe, 1, 1), {0, 1, 1, 0}); }), "no time"));
  }

} // TEST_SUITE
