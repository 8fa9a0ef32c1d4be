#include "train/capture.h"
#include "kernels/elementwise.h"

namespace triax {

Capture::Capture(Device& device, int64_t micro_batches, int64_t bytes)
    : device_(device),
      kept_(device.persistent("captured", Purpose::inputs, Dtype::u8, {micro_batches, bytes}, Space::pinned)) {}

void Capture::begin_step() {
  taken_.clear();
  used_.assign(size_t(kept_.dim[0]), 0);
}

void Capture::take(const Observed& observed) {
  const Tensor& t = observed.tensor;
  int64_t& used = used_[size_t(micro_batch_)];
  ENSURE(used + t.bytes() <= kept_.dim[1], observed.name, " of ", t.bytes(), " bytes: the room for what is captured, ",
         kept_.dim[1], " bytes, is used up");
  Tensor to = t;
  to.space = Space::pinned;
  to.address = kept_.address + uint64_t(micro_batch_ * kept_.dim[1] + used);
  used += aligned(t.bytes());
  device_.compute().run(copy(to, t));
  taken_.push_back({observed, micro_batch_});
  taken_.back().observed.tensor = to;
}

} // namespace triax
