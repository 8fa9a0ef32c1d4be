// What the tests of the GPU share. They are part of the CUDA build alone; where there is no GPU they say so and pass.
#pragma once
#include "kernels/device.h"
#include <doctest/doctest.h>

namespace triax::test {

/// The GPU of this machine, or null after a message that nothing was run.
inline std::unique_ptr<Device> open_gpu() {
  const Target target = best_target();
  if (target.kind == Target::Kind::cuda) return Device::open(target, 1);
  MESSAGE("no GPU that this binary can use: not run");
  return nullptr;
}

} // namespace triax::test
