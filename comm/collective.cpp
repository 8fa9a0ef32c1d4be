#include "comm/collective.h"
#include "kernels/elementwise.h"
#include <algorithm>

namespace triax {
namespace {

/// What travels: each rank sends and receives all pieces but its own.
Description describe_exchange(const Target&, const Op& op) {
  const double n = double(op.get<CollectiveAttributes>().size);
  return {.bytes = double(op[0].bytes()) * (n - 1) / n, .kernels = {op.kind->name}, .trusted = true};
}

const OpKind kAllGather{"all_gather", describe_exchange};
const OpKind kAllToAll{"all_to_all", describe_exchange};

/// Bytes that are staged at a time where MPI cannot reach the memory.
constexpr int64_t kStage = int64_t(1) << 24;

Collectives::Call& call_of(const Op& op) { return *static_cast<Collectives::Call*>(op.handle); }

void all_gather_on_host(const Op& op, const LaunchContext&) {
  Collectives::Call& call = call_of(op);
  call.transport->all_gather(op[1].data<std::byte>(), op[0].data<std::byte>(), op[1].bytes(), call.group);
}

void all_to_all_on_host(const Op& op, const LaunchContext&) {
  Collectives::Call& call = call_of(op);
  call.transport->all_to_all(op[1].data<std::byte>(), op[0].data<std::byte>(), op[0].bytes() / call.group.size(),
                             call.group);
}

/// The stream's thread has waited for the data: device to host, exchange, host to device, a part of each piece at a
/// time. `pieces` is how many a rank sends.
template <class Exchange> void staged(const Op& op, int64_t pieces, const Exchange& exchange) {
  Collectives::Call& call = call_of(op);
  const int64_t size = call.group.size(), bytes = op[0].bytes() / size, part = std::max<int64_t>(kStage / size, 1);
  for (int64_t at = 0; at < bytes; at += part) {
    const int64_t n = std::min(part, bytes - at);
    const auto transfer = [&](std::vector<std::byte>& stage, const Tensor& t, int64_t count, bool to_device) {
      stage.resize(size_t(size * part));
      for (int64_t r = 0; r < count; ++r) {
        const uint64_t there = t.address + uint64_t(r * bytes + at), here = uint64_t(stage.data() + r * n);
        to_device ? call.device->transfer(there, here, n) : call.device->transfer(here, there, n);
      }
    };
    transfer(call.sent, op[1], pieces, false);
    exchange(call, n);
    transfer(call.received, op[0], size, true);
  }
}

void all_gather_staged(const Op& op, const LaunchContext&) {
  staged(op, 1, [](Collectives::Call& c, int64_t n) {
    c.received.resize(size_t(c.group.size() * n));
    c.transport->all_gather(c.sent.data(), c.received.data(), n, c.group);
  });
}

void all_to_all_staged(const Op& op, const LaunchContext&) {
  staged(op, call_of(op).group.size(), [](Collectives::Call& c, int64_t n) {
    c.received.resize(size_t(c.group.size() * n));
    c.transport->all_to_all(c.sent.data(), c.received.data(), n, c.group);
  });
}

const LaunchRegistration kRegistrations[] = {{"host", "all_gather", all_gather_on_host},
                                             {"host", "all_to_all", all_to_all_on_host},
                                             {"cuda", "all_gather", all_gather_staged},
                                             {"cuda", "all_to_all", all_to_all_staged}};

} // namespace

bool is_collective(const OpKind& kind) { return &kind == &kAllGather || &kind == &kAllToAll; }

Collectives::Collectives(Device& device, Transport& transport, const Group& group, StreamId stream)
    : call_{&device, &transport, group, {}, {}}, stream_(stream) {}

Collectives::~Collectives() {
  try { // operations that are still queued refer to call_
    call_.device->synchronize();
  } catch (const std::exception&) { // an earlier error is on its way
  }
}

void Collectives::follow_compute() {
  if (size() > 1) stream().wait(call_.device->compute().record());
}

void Collectives::compute_follows() {
  if (size() > 1) call_.device->compute().wait(stream().record());
}

void Collectives::issue(const OpKind& kind, const Tensor& out, const Tensor& in, const Place& place) {
  Op op(kind);
  op.write(out).read(in).set(CollectiveAttributes{group().axes().bits(), sequence_++, size()});
  op.handle = &call_;
  stream().run(op, place);
}

void Collectives::all_gather(const Tensor& out, const Tensor& in, const Place& place) {
  ENSURE(out.dense() && in.dense() && out.dtype == in.dtype && out.size() == in.size() * size(), "all_gather of ",
         in.describe(), " into ", out.describe(), " over ", size(), " ranks");
  if (size() > 1) return issue(kAllGather, out, in, place);
  if (out.address != in.address) call_.device->compute().run(copy(out, in), place);
}

void Collectives::all_to_all(const Tensor& out, const Tensor& in, const Place& place) {
  ENSURE(out.dense() && in.dense() && out.dtype == in.dtype && out.size() == in.size() && out.size() % size() == 0,
         "all_to_all of ", in.describe(), " into ", out.describe(), " over ", size(), " ranks");
  if (size() > 1) return issue(kAllToAll, out, in, place);
  if (out.address != in.address) call_.device->compute().run(copy(out, in), place);
}

void Collectives::reduce_scatter(const Tensor& out, const Tensor& in, bool accumulate, const Place& place) {
  ENSURE(in.size() == out.size() * size(), "reduce_scatter of ", in.describe(), " into ", out.describe(), " over ",
         size(), " ranks");
  const Tensor pieces = in.view({size(), out.size()});
  if (size() == 1) {
    if (accumulate || out.address != in.address)
      call_.device->compute().run(sum_pieces(out, pieces, accumulate), place);
    return;
  }
  Allocation received = call_.device->allocate("received pieces", Purpose::communication, in.dtype, {in.size()});
  all_to_all(received, in, place);
  stream().run(sum_pieces(out, received->view({size(), out.size()}), accumulate), place);
}

void Collectives::all_reduce(const Tensor& t, const Place& place) {
  if (size() == 1) return;
  ENSURE(t.dtype == Dtype::f32 && t.dense(), "all_reduce sums dense f32, not ", t.describe());
  Allocation all = call_.device->allocate("received pieces", Purpose::communication, t.dtype, {size() * t.size()});
  all_gather(all, t, place);
  stream().run(sum_pieces(t.view({t.size()}), all->view({size(), t.size()}), false), place);
}

Collectives& Groups::along(Axes axes) {
  auto& known = known_[axes.bits()];
  const bool tensor = (axes.bits() & ~kTensorAxes.bits()) == 0;
  if (!known)
    known = std::make_unique<Collectives>(device_, transport_, transport_.group(mesh_, axes),
                                          tensor ? StreamId::exchange : StreamId::communication);
  return *known;
}

void Groups::begin() {
  for (auto& [axes, collectives] : known_) collectives->begin();
}

} // namespace triax
