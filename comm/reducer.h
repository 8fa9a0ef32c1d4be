// Gradient buckets: summed over the data axis on the communication stream while the backward pass goes on.
#pragma once
#include "comm/collective.h"

namespace triax {

class BucketReducer {
public:
  /// `gradients` is the flat f32 buffer. Backward finishes it from `descending_end` downwards; what lies behind
  /// `descending_end` (vectors of all layers) is finished last, in one bucket.
  BucketReducer(Device& device, Collectives& group, const Tensor& gradients, int64_t descending_end,
                int64_t bucket_bytes);

  /// The last backward pass of a step starts.
  void begin();
  /// Every gradient in [offset, descending_end) is final: buckets that lie in it are sent.
  void finished_down_to(int64_t offset);
  /// All gradients are final: sends the rest, and `also` (f32, summed in place too); the compute stream waits for all
  /// sums.
  void finish(const Tensor& also);

private:
  void send(const Tensor& part);
  Device& device_;
  Collectives& group_;
  Tensor gradients_;
  int64_t descending_end_, bucket_elements_, sent_down_to_ = 0;
};

} // namespace triax
