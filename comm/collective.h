// Collectives are operations: issued on a stream, recorded, planned and checked like any other.
#pragma once
#include "comm/transport.h"
#include "kernels/device.h"
#include <deque>

namespace triax {

/// What identifies a collective among those of a program: the same on all ranks of the group.
struct CollectiveAttributes {
  int64_t axes;     ///< Axes::bits of the group
  int64_t sequence; ///< among the group's collectives of the step, from 0
  int64_t size;     ///< ranks of the group
};
/// Is it one whose operation all ranks of a group must meet? Its attributes are then CollectiveAttributes.
bool is_collective(const OpKind& kind);

/// Of a link's two ends, one sends where the other receives.
bool is_send(const OpKind& kind);
bool is_receive(const OpKind& kind);

/// The collectives of one group, all on one stream, in a sequence that every rank of the group must follow. A group of
/// one issues nothing, but the copy that a result in another place needs.
///
/// Sums are in f32 over a fixed binary tree of the ranks' places in the group, ((0 + 1) + (2 + 3)) + ..., so that they
/// do not depend on how the transport works, and a rank that sums four lanes by itself adds them as four ranks would.
class Collectives {
public:
  Collectives(Device& device, Transport& transport, const Group& group, StreamId stream);
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;
  const Group& group() const { return call_.group; }
  int size() const { return call_.group.size(); }
  Stream stream() const { return {call_.device, stream_}; }
  /// A step begins: sequence numbers start again.
  void begin() { sequence_ = 0; }

  // All tensors are dense and of one dtype; `n` is the number of elements of a piece. What is issued on the compute
  // stream before is waited for by `follow_compute`, what was issued here by `compute_follows`.
  void follow_compute();
  void compute_follows();
  /// Both, around what `issue` issues here.
  template <class Issue> void in_line(const Issue& issue) {
    follow_compute();
    issue();
    compute_follows();
  }

  /// out [size, n] = every rank's in [n], which may be its own place in `out`.
  void all_gather(const Tensor& out, const Tensor& in, const Place& place = Place::current());
  /// out [size, n]: piece r is piece `this rank` of rank r's in [size, n].
  void all_to_all(const Tensor& out, const Tensor& in, const Place& place = Place::current());
  /// out [n] = the sum of all ranks' piece `this rank` of in [size, n]; with `accumulate` it is added to `out`, f32.
  /// `out` may lie in `in`.
  void reduce_scatter(const Tensor& out, const Tensor& in, bool accumulate = false,
                      const Place& place = Place::current());
  /// t (f32) becomes its sum over the group; for what is short, as every rank receives all.
  void all_reduce(const Tensor& t, const Place& place = Place::current());
  /// `in` goes to the next rank of the group, `out` comes from the one before; the first follows the last.
  void shift(const Tensor& out, const Tensor& in, const Place& place = Place::current());

  // Over a link, whose group is {sender, receiver}; what one sends the other receives, in order.
  void send(const Tensor& in, const Place& place = Place::current());
  void receive(const Tensor& out, const Place& place = Place::current());

  struct Call;
  /// What an operation's handle points to.
  struct Issued {
    Call* call;
    Place place;
  };
  /// What a launch needs beside the operation; lives as long as the object.
  struct Call {
    Device* device;
    Transport* transport;
    Group group;
    std::vector<std::byte> sent, received; ///< host memory, where MPI cannot reach the device's
    std::deque<Issued> issued;             ///< of the step, by sequence
  };

private:
  void issue(Op op, const Place& place);
  void issue(const OpKind& kind, const Tensor& out, const Tensor& in, const Place& place);
  Call call_;
  Device::Bytes registered_; ///< with NCCL
  StreamId stream_;
  int64_t sequence_ = 0;
};

/// The groups of one rank: one Collectives for each set of axes, made when first asked for.
class Groups {
public:
  Groups(Device& device, Transport& transport, const Mesh& mesh)
      : device_(device), transport_(transport), mesh_(mesh) {}
  /// Those of tensor axes alone and rings work on the exchange stream, links on the pipeline stream, all others on the
  /// communication stream. Collective over all ranks when first asked for.
  Collectives& along(Axes axes);
  /// Makes all links of the axis that this rank has an end of, in an order in which no two ranks wait for each other.
  void make_links(Axis axis);
  const Mesh& mesh() const { return mesh_; }
  Device& device() const { return device_; }
  void begin(); ///< a step begins

private:
  Device& device_;
  Transport& transport_;
  const Mesh mesh_;
  std::map<uint32_t, std::unique_ptr<Collectives>> known_;
};

} // namespace triax
