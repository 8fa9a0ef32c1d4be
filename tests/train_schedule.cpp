// The learning rate at every step.
#include "tests/helpers.h"
#include "train/schedule.h"
#include <cmath>
#include <doctest/doctest.h>

using namespace triax;
using namespace triax::test;

namespace {

OptimizerConfig optimizer(ScheduleKind schedule, int64_t warmup, int64_t cooldown = 0) {
  OptimizerConfig config;
  config.lr = 1e-3;
  config.min_lr = 1e-4;
  config.schedule = schedule;
  config.warmup_steps = warmup;
  config.cooldown_steps = cooldown;
  return config;
}

doctest::Approx near(double value) { return doctest::Approx(value).epsilon(1e-6); }

} // namespace

TEST_SUITE("train_schedule") {

  TEST_CASE("cosine reaches lr, the middle and min_lr") {
    const OptimizerConfig o = optimizer(ScheduleKind::cosine, 10);
    CHECK(learning_rate(o, 1, 110) == near(1e-4)); // not a wasted step at 0
    CHECK(learning_rate(o, 10, 110) == near(1e-3));
    CHECK(learning_rate(o, 60, 110) == near(5.5e-4));
    CHECK(learning_rate(o, 110, 110) == near(1e-4));
    CHECK(learning_rate(o, 5000, 110) == learning_rate(o, 110, 110));
  }

  TEST_CASE("cooldowns of wsd") {
    OptimizerConfig o = optimizer(ScheduleKind::wsd, 10, 40);
    const std::pair<Cooldown, double> quarter[] = {
        {Cooldown::linear, 0.75}, {Cooldown::sqrt, std::sqrt(0.75)}, {Cooldown::one_minus_sqrt, 0.5}};
    for (const auto& [cooldown, left] : quarter) {
      o.cooldown = cooldown;
      CHECK(learning_rate(o, 11, 100) == near(1e-3));
      CHECK(learning_rate(o, 60, 100) == near(1e-3));
      CHECK(learning_rate(o, 70, 100) == near(1e-4 + 9e-4 * left));
      CHECK(learning_rate(o, 100, 100) == near(1e-4));
      CHECK(learning_rate(o, 101, 100) == near(1e-4));
    }
  }

  TEST_CASE("constant stays at lr") {
    const OptimizerConfig o = optimizer(ScheduleKind::constant, 4);
    CHECK(learning_rate(o, 2, 10) == near(5e-4));
    for (int64_t step = 4; step < 20; ++step) CHECK(learning_rate(o, step, 10) == near(1e-3));
  }

  TEST_CASE("every combination is finite, within bounds, and falls after warm-up") {
    for (const ScheduleKind schedule : {ScheduleKind::cosine, ScheduleKind::wsd, ScheduleKind::constant})
      for (const Cooldown cooldown : {Cooldown::linear, Cooldown::sqrt, Cooldown::one_minus_sqrt})
        for (int64_t steps = 1; steps <= 12; ++steps)
          for (int64_t warmup = 0; warmup <= steps; ++warmup)
            for (int64_t fall = 0; fall <= steps - warmup; ++fall) {
              OptimizerConfig o = optimizer(schedule, warmup, fall);
              o.cooldown = cooldown;
              CAPTURE(int(schedule));
              CAPTURE(steps);
              CAPTURE(warmup);
              CAPTURE(fall);
              float last = float(o.lr);
              for (int64_t step = 1; step <= steps + 3; ++step) {
                const float rate = learning_rate(o, step, steps);
                const bool good = std::isfinite(rate) && rate > 0 && rate <= float(o.lr) &&
                                  (step <= warmup || (rate >= float(o.min_lr) && rate <= last));
                if (!good) FAIL("rate ", rate, " at step ", step);
                if (step > warmup) last = rate;
              }
            }
  }

  TEST_CASE("steps are counted from 1") {
    CHECK(has(error_of([] { learning_rate(OptimizerConfig{}, 0, 10); }), "counted from 1"));
  }

} // TEST_SUITE
