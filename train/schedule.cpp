#include "train/schedule.h"
#include "kernels/check.h"
#include <algorithm>
#include <cmath>
#include <numbers>

namespace triax {

namespace {

double left(Cooldown cooldown, double u) {
  switch (cooldown) {
  case Cooldown::linear:
    return 1 - u;
  case Cooldown::sqrt:
    return std::sqrt(1 - u);
  case Cooldown::one_minus_sqrt:
    return 1 - std::sqrt(u);
  }
  ENSURE(false, "a cooldown without a formula");
}

// Progress 0..1 through the steps after `start` up to `end`; 1 for a stretch of no steps.
double progress(int64_t step, int64_t start, int64_t end) {
  return step >= end ? 1 : double(step - start) / double(end - start);
}

} // namespace

float learning_rate(const OptimizerConfig& o, int64_t step, int64_t steps) {
  ENSURE(step >= 1, "steps are counted from 1");
  if (step <= o.warmup_steps) return float(o.lr * double(step) / double(o.warmup_steps));
  const double range = o.lr - o.min_lr;
  switch (o.schedule) {
  case ScheduleKind::constant:
    return float(o.lr);
  case ScheduleKind::cosine: {
    const double u = progress(step, o.warmup_steps, steps);
    return float(o.min_lr + range * (1 + std::cos(std::numbers::pi * u)) / 2);
  }
  case ScheduleKind::wsd: {
    const int64_t start = steps - o.cooldown_steps;
    if (o.cooldown_steps == 0 || step <= start) return float(o.lr);
    return float(o.min_lr + range * left(o.cooldown, progress(step, start, steps)));
  }
  }
  ENSURE(false, "a schedule without a formula");
}

} // namespace triax
