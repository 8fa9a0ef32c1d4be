#include "comm/collective.h"
#include "comm/nccl.h"
#include "kernels/elementwise.h"
#include <algorithm>

namespace triax {
namespace {

/// What travels: each rank sends and receives all pieces but its own.
Description describe_exchange(const Target&, const Op& op) {
  const double n = double(op.get<CollectiveAttributes>().size);
  return {.bytes = double(op[0].bytes()) * (n - 1) / n, .kernels = {op.kind->name}, .trusted = true};
}

Description describe_transfer(const Target&, const Op& op) {
  return {.bytes = double(op[0].bytes()), .kernels = {op.kind->name}, .trusted = true};
}

const OpKind kAllGather{"all_gather", describe_exchange};
const OpKind kAllToAll{"all_to_all", describe_exchange};
const OpKind kShift{"shift", describe_transfer};
const OpKind kSend{"send", describe_transfer};
const OpKind kReceive{"receive", describe_transfer};

/// Bytes that are staged at a time where MPI cannot reach the memory.
constexpr int64_t kStage = int64_t(1) << 24;

const Collectives::Issued& issued_of(const Op& op) { return *static_cast<const Collectives::Issued*>(op.handle); }
Collectives::Call& call_of(const Op& op) { return *issued_of(op).call; }
Origin origin_of(const Op& op) { return {op.get<CollectiveAttributes>().sequence, &op[0], &issued_of(op).place}; }

/// How many pieces come out: one of each rank, or one.
int64_t pieces_of(const Op& op) { return op.kind == &kShift ? 1 : call_of(op).group.size(); }

/// Transport::all_gather, all_to_all or shift.
using Exchange = void (Transport::*)(const void* mine, void* all, int64_t bytes_each, const Group& group,
                                     const Origin&);

template <Exchange exchange> void on_host(const Op& op, const LaunchContext&) {
  Collectives::Call& call = call_of(op);
  const int64_t bytes_each = op[0].bytes() / pieces_of(op);
  (call.transport->*exchange)(op[1].data<std::byte>(), op[0].data<std::byte>(), bytes_each, call.group, origin_of(op));
}

/// The stream's thread has waited for the data: device to host, exchange, host to device, a part of each piece at a
/// time.
template <Exchange exchange> void staged(const Op& op, const LaunchContext&) {
  Collectives::Call& call = call_of(op);
  const int64_t size = pieces_of(op), bytes = op[0].bytes() / size, part = std::max<int64_t>(kStage / size, 1);
  call.sent.resize(size_t(size * part));
  call.received.resize(size_t(size * part));
  for (int64_t at = 0; at < bytes; at += part) {
    const int64_t n = std::min(part, bytes - at), pieces = op[1].bytes() / bytes;
    const auto there = [&](const Tensor& t, int64_t r) { return t.address + uint64_t(r * bytes + at); };
    const auto here = [&](std::vector<std::byte>& stage, int64_t r) { return uint64_t(stage.data() + r * n); };
    for (int64_t r = 0; r < pieces; ++r) call.device->transfer(here(call.sent, r), there(op[1], r), n);
    (call.transport->*exchange)(call.sent.data(), call.received.data(), n, call.group, origin_of(op));
    for (int64_t r = 0; r < size; ++r) call.device->transfer(there(op[0], r), here(call.received, r), n);
  }
}

void send_on_host(const Op& op, const LaunchContext&) {
  Collectives::Call& call = call_of(op);
  call.transport->send(op[0].data<std::byte>(), op[0].bytes(), call.group, origin_of(op));
}

void receive_on_host(const Op& op, const LaunchContext&) {
  Collectives::Call& call = call_of(op);
  call.transport->receive(op[0].data<std::byte>(), op[0].bytes(), call.group, origin_of(op));
}

void send_staged(const Op& op, const LaunchContext&) {
  Collectives::Call& call = call_of(op);
  call.sent.resize(size_t(std::min(kStage, op[0].bytes())));
  for (int64_t at = 0; at < op[0].bytes(); at += kStage) {
    const int64_t n = std::min(kStage, op[0].bytes() - at);
    call.device->transfer(uint64_t(call.sent.data()), op[0].address + uint64_t(at), n);
    call.transport->send(call.sent.data(), n, call.group, origin_of(op));
  }
}

void receive_staged(const Op& op, const LaunchContext&) {
  Collectives::Call& call = call_of(op);
  call.received.resize(size_t(std::min(kStage, op[0].bytes())));
  for (int64_t at = 0; at < op[0].bytes(); at += kStage) {
    const int64_t n = std::min(kStage, op[0].bytes() - at);
    call.transport->receive(call.received.data(), n, call.group, origin_of(op));
    call.device->transfer(op[0].address + uint64_t(at), uint64_t(call.received.data()), n);
  }
}

/// On a GPU: enqueued on its stream by NCCL where that is the transport, else made by the host through MPI. The plan is
/// the same.
template <auto enqueue, LaunchFn staged> void by_nccl(const Op& op, const LaunchContext& context) {
  Collectives::Call& call = call_of(op);
  Nccl* nccl = call.transport->nccl();
  if (!nccl) return staged(op, context);
  const int64_t sequence = op.get<CollectiveAttributes>().sequence;
  if constexpr (std::is_same_v<decltype(enqueue), decltype(&Nccl::all_gather)>) // all_to_all and shift are alike
    (nccl->*enqueue)(op[0], op[1], call.group, sequence, context.native_stream);
  else
    (nccl->*enqueue)(op[0], call.group, sequence, context.native_stream);
}

const LaunchRegistration kRegistrations[] = {
    {"host", "all_gather", on_host<&Transport::all_gather>},
    {"host", "all_to_all", on_host<&Transport::all_to_all>},
    {"host", "shift", on_host<&Transport::shift>},
    {"host", "send", send_on_host},
    {"host", "receive", receive_on_host},
    {"cuda", "shift", by_nccl<&Nccl::shift, staged<&Transport::shift>>},
    {"cuda", "send", by_nccl<&Nccl::send, send_staged>},
    {"cuda", "receive", by_nccl<&Nccl::receive, receive_staged>},
    {"cuda", "all_gather", by_nccl<&Nccl::all_gather, staged<&Transport::all_gather>>},
    {"cuda", "all_to_all", by_nccl<&Nccl::all_to_all, staged<&Transport::all_to_all>>}};

} // namespace

bool is_send(const OpKind& kind) { return &kind == &kSend; }
bool is_receive(const OpKind& kind) { return &kind == &kReceive; }
bool is_collective(const OpKind& kind) {
  return &kind == &kAllGather || &kind == &kAllToAll || &kind == &kShift || is_send(kind) || is_receive(kind);
}

Collectives::Collectives(Device& device, Transport& transport, const Group& group, StreamId stream)
    : call_{&device, &transport, group, {}, {}, {}}, stream_(stream) {
  Nccl* nccl = transport.nccl();
  if (!nccl || group.size() == 1 || device.is_ghost()) return;
  device.enqueue_collectives([nccl] { nccl->check(); });
  registered_ = device.arena();
  if (registered_.bytes > 0) nccl->register_memory(group, registered_.address, registered_.bytes);
}

Collectives::~Collectives() {
  try { // operations that are still queued refer to call_
    call_.device->synchronize();
    if (registered_.bytes > 0) call_.transport->nccl()->deregister_memory(call_.group, registered_.address);
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
  if (size() == 1) {
    if (out.address != in.address) call_.device->compute().run(copy(out, in), place);
    return;
  }
  issue(Op(kind).write(out).read(in), place);
}

void Collectives::issue(Op op, const Place& place) {
  op.set(CollectiveAttributes{group().axes().bits(), sequence_++, size()});
  // Read by the stream until the step ends; a deque's elements stay where they are.
  if (size_t(sequence_) > call_.issued.size()) call_.issued.push_back({});
  call_.issued[size_t(sequence_ - 1)] = {&call_, place};
  op.handle = &call_.issued[size_t(sequence_ - 1)];
  stream().run(op, place);
}

void Collectives::send(const Tensor& in, const Place& place) {
  ENSURE(in.dense() && group().axes().is_link() && group().index() == 0, "send of ", in.describe(), " over ",
         group().axes().name());
  issue(Op(kSend).read(in), place);
}

void Collectives::receive(const Tensor& out, const Place& place) {
  ENSURE(out.dense() && group().axes().is_link() && group().index() == 1, "receive of ", out.describe(), " over ",
         group().axes().name());
  issue(Op(kReceive).write(out), place);
}

void Collectives::all_gather(const Tensor& out, const Tensor& in, const Place& place) {
  ENSURE(out.dense() && in.dense() && out.dtype == in.dtype && out.size() == in.size() * size(), "all_gather of ",
         in.describe(), " into ", out.describe(), " over ", size(), " ranks");
  issue(kAllGather, out, in, place);
}

void Collectives::all_to_all(const Tensor& out, const Tensor& in, const Place& place) {
  ENSURE(out.dense() && in.dense() && out.dtype == in.dtype && out.size() == in.size() && out.size() % size() == 0,
         "all_to_all of ", in.describe(), " into ", out.describe(), " over ", size(), " ranks");
  issue(kAllToAll, out, in, place);
}

void Collectives::shift(const Tensor& out, const Tensor& in, const Place& place) {
  ENSURE(out.dense() && in.dense() && out.dtype == in.dtype && out.size() == in.size(), "shift of ", in.describe(),
         " into ", out.describe());
  issue(kShift, out, in, place);
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
  const bool inside_layers = axes.is_ring() || (axes.bits() & ~kTensorAxes.bits()) == 0;
  const StreamId stream = axes.is_link()  ? StreamId::pipeline
                          : inside_layers ? StreamId::exchange
                                          : StreamId::communication;
  if (!known) known = std::make_unique<Collectives>(device_, transport_, transport_.group(mesh_, axes), stream);
  return *known;
}

void Groups::make_links(Axis axis) {
  const int count = mesh_.size(axis), own = mesh_.coordinate(axis);
  for (int first = 0; count > 1 && first < count; ++first)
    for (const bool back : {false, true})
      if (own == first || own == (first + 1) % count) along(Axes::link(axis, first, back));
}

void Groups::begin() {
  for (auto& [axes, collectives] : known_) collectives->begin();
}

} // namespace triax
