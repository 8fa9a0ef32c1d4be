// What a step computes, kept for `triax diff`: copies to the host that are part of the planned step.
#pragma once
#include "kernels/device.h"
#include "model/decoder.h"

namespace triax {

class Capture {
public:
  /// Room for `bytes` of observed tensors of each micro-batch (Decoder::observed_bytes), pinned.
  Capture(Device& device, int64_t micro_batches, int64_t bytes);
  void begin_step(); ///< its tensors take the place of those of the step before
  void at(int64_t micro_batch) { micro_batch_ = micro_batch; } ///< whose tensors follow
  void take(const Observed& observed);                         ///< issues the copy

  struct Taken {
    Observed observed; ///< its tensor is the copy, there once the step is done
    int64_t micro_batch;
  };
  const std::vector<Taken>& taken() const { return taken_; } ///< in the order of the step

private:
  Device& device_;
  Tensor kept_; ///< u8[micro-batches, bytes]
  int64_t micro_batch_ = 0;
  std::vector<int64_t> used_; ///< bytes, by micro-batch
  std::vector<Taken> taken_;
};

} // namespace triax
