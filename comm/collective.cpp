#include "comm/collective.h"
#include <algorithm>

namespace triax {
namespace {

struct CollectiveAttributes {
  int64_t group; ///< a hash of the group's ranks
  int64_t sequence;
  int64_t size;
};

Description describe_all_reduce(const Target&, const Op& op) {
  const double n = double(op.get<CollectiveAttributes>().size), bytes = double(op[0].bytes());
  return {.flops = double(op[0].size()) * (n - 1) / n,
          .bytes = 2 * bytes * (n - 1) / n,
          .kernels = {"all_reduce"},
          .trusted = true};
}

const OpKind kAllReduce{"all_reduce", describe_all_reduce};

/// Elements that are staged at a time where MPI cannot reach the memory.
constexpr int64_t kStage = int64_t(1) << 22;

void launch_on_host(const Op& op, const LaunchContext&) {
  auto& call = *static_cast<Collectives::Call*>(op.handle);
  call.transport->all_reduce(op[0].data<float>(), op[0].size(), call.group);
}

/// The stream's thread has waited for the data: device to host, sum, host to device.
void launch_staged(const Op& op, const LaunchContext&) {
  auto& call = *static_cast<Collectives::Call*>(op.handle);
  const uint64_t stage = reinterpret_cast<uint64_t>(call.stage.data());
  for (int64_t at = 0; at < op[0].size(); at += kStage) {
    const Tensor piece = op[0].slice(0, at, std::min(kStage, op[0].size() - at));
    call.device->transfer(stage, piece.address, piece.bytes());
    call.transport->all_reduce(call.stage.data(), piece.size(), call.group);
    call.device->transfer(piece.address, stage, piece.bytes());
  }
}

const LaunchRegistration kOnHost("host", "all_reduce", launch_on_host);
const LaunchRegistration kStaged("cuda", "all_reduce", launch_staged);

int64_t identity_of(const Group& group) {
  uint64_t h = 0;
  for (int rank : group.ranks()) h = (h ^ uint64_t(rank + 1)) * 0x9E3779B97F4A7C15ull;
  return int64_t(h);
}

} // namespace

Collectives::Collectives(Device& device, Transport& transport, Group group)
    : call_{&device, &transport, std::move(group), {}} {
  if (device.target().kind == Target::Kind::cuda && !device.is_ghost() && size() > 1)
    call_.stage.resize(size_t(kStage));
}

Collectives::~Collectives() {
  try { // operations that are still queued refer to call_
    call_.device->synchronize();
  } catch (const std::exception&) { // an earlier error is on its way
  }
}

void Collectives::all_reduce(Stream stream, const Tensor& t) {
  if (size() == 1) return;
  ENSURE(t.dtype == Dtype::f32 && t.dense(), "all_reduce sums dense f32, not ", t.describe());
  Op op(kAllReduce);
  op.update(t).set(CollectiveAttributes{identity_of(call_.group), sequence_++, size()});
  op.handle = &call_;
  stream.run(op);
}

} // namespace triax
