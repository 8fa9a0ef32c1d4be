// The learning rate as a closed form of the step.
#pragma once
#include "train/config.h"
#include <cstdint>

namespace triax {

/// The rate of update number `step`, counted from 1, of `steps` in all:
///   warm-up    lr * step / warmup                                        for step <= warmup
///   constant   lr
///   cosine     min_lr + (lr - min_lr) (1 + cos(pi u)) / 2,   u = (step - warmup) / (steps - warmup)
///   wsd        lr, then min_lr + (lr - min_lr) left(u),      u = (step - (steps - cooldown)) / cooldown
/// left(u) as at `Cooldown`. So update 1 is not wasted on a rate of 0, update `warmup` has lr, the last one min_lr
/// (cosine; wsd with a cooldown), and any later one keeps the last one's rate. Needs step >= 1 and a validated config.
float learning_rate(const OptimizerConfig& optimizer, int64_t step, int64_t steps);

} // namespace triax
