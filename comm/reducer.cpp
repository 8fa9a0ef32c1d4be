#include "comm/reducer.h"
#include <algorithm>

namespace triax {

BucketReducer::BucketReducer(Device& device, Collectives& group, const Tensor& gradients, int64_t descending_end,
                             int64_t bucket_bytes)
    : device_(device), group_(group), gradients_(gradients), descending_end_(descending_end),
      bucket_elements_(std::max<int64_t>(bucket_bytes / bytes_of(Dtype::f32), 1)) {}

void BucketReducer::begin() { sent_down_to_ = descending_end_; }

void BucketReducer::send(const Tensor& part) {
  if (group_.size() == 1 || part.size() == 0) return;
  Stream communication = device_.communication();
  communication.wait(device_.compute().record());
  group_.all_reduce(communication, part);
}

void BucketReducer::finished_down_to(int64_t offset) {
  for (; sent_down_to_ - offset >= bucket_elements_; sent_down_to_ -= bucket_elements_)
    send(gradients_.slice(0, sent_down_to_ - bucket_elements_, bucket_elements_));
}

void BucketReducer::finish(const Tensor& also) {
  finished_down_to(0);
  send(gradients_.slice(0, 0, sent_down_to_));
  send(gradients_.slice(0, descending_end_, gradients_.dim[0] - descending_end_));
  send(also);
  if (group_.size() > 1) device_.compute().wait(device_.communication().record());
}

} // namespace triax
