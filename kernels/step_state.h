// What changes from step to step. It lives in one device tensor, written by one copy when a step starts, so that the
// operations of a step are the same values every time.
#pragma once
#include <cstdint>

namespace triax {

/// u8[sizeof(StepState)] on the device.
struct StepState {
  uint64_t seed = 0; ///< of the run
  int64_t step = 0;  ///< 1-based number of the step
  float learning_rate = 0;
  float moment1_scale = 1;  ///< 1 / (1 - beta1^step), Adam's bias correction (Kingma and Ba 2015, algorithm 1)
  float moment2_scale = 1;  ///< 1 / (1 - beta2^step)
  int32_t tensor_rank = 0;  ///< this rank's place in its tensor-parallel group
  int32_t shard_rank = 0;   ///< and among the ranks over which a ZeRO stage shards: so that all ranks issue the same
  int32_t context_rank = 0; ///< and among those that share the positions of a sequence
};

/// f32[kStepScalars] on the device, summed over a step and over all ranks.
enum StepScalar : int {
  kLossSum,       ///< sum of the losses of counted tokens, in nats
  kTokenCount,    ///< counted tokens
  kGradientNorm2, ///< squared norm of the gradient of the mean loss, before clipping
  kGradientScale, ///< what AdamW multiplies each accumulated gradient by: to the mean over counted tokens, and clipped
  kStepScalars
};

} // namespace triax
