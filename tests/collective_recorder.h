// Steps of collectives, recorded by ghosts of any rank, for the tests of the collective check.
#pragma once
#include "comm/collective.h"
#include "comm/collective_check.h"
#include <doctest/doctest.h>
#include <functional>

namespace triax {

using Sentences = std::vector<std::string>;

/// One rank's ghost with three groups: tensor, data, and all ranks.
struct Recorder {
  Recorder(const MeshShape& shape, int rank, StreamId tensor_stream = StreamId::exchange)
      : device(Device::ghost({})), transport(Transport::ghost(rank, int(shape.ranks()))),
        mesh(shape, rank, int(shape.ranks())),
        tensor(*device, *transport, transport->group(mesh, kTensorAxes), tensor_stream),
        data(*device, *transport, transport->group(mesh, kDataAxes), StreamId::communication),
        x(device->persistent("x", Purpose::activations, Dtype::f32, {1 << 13})),
        y(device->persistent("y", Purpose::gradients, Dtype::f32, {1 << 13})) {}

  Tensor sent(const Collectives& group, int64_t n) const { return (&group == &tensor ? x : y).slice(0, 0, n); }
  /// Groups gather into buffers of their own, so that streams share no bytes.
  void gather(Collectives& group, int64_t n = 32, const Place& place = Place::current()) {
    const Allocation out = device->allocate("gathered", Purpose::communication, Dtype::f32, {group.size() * n});
    group.all_gather(out, sent(group, n), place);
  }
  void exchange(Collectives& group, int64_t n = 32, const Place& place = Place::current()) {
    const Allocation out = device->allocate("received", Purpose::communication, Dtype::f32, {group.size() * n});
    group.all_to_all(out, sent(group, group.size() * n), place);
  }
  template <class Issue> Plan step(const Issue& issue, const std::string& kind = "train") {
    begin(kind);
    issue(*this);
    device->end();
    return device->plan();
  }
  void begin(const std::string& kind) {
    device->begin(kind);
    tensor.begin();
    data.begin();
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Transport> transport;
  Mesh mesh;
  Collectives tensor, data;
  Tensor x, y; ///< what each group sends
};

using Issue = std::function<void(Recorder&)>;

/// What is found where each rank of the mesh issues what `of_rank` gives for it.
inline Sentences faults_where(const MeshShape& shape, const std::function<Issue(int)>& of_rank,
                              StreamId tensor_stream = StreamId::exchange) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < int(shape.ranks()); ++rank)
    plans.push_back(Recorder(shape, rank, tensor_stream).step(of_rank(rank)));
  std::vector<const Plan*> pointers;
  for (const Plan& plan : plans) pointers.push_back(&plan);
  return collective_faults(Mesh(shape, 0, int(shape.ranks())), pointers);
}

inline bool mentions(const Sentences& found, std::initializer_list<const char*> words) {
  std::string all;
  for (const std::string& sentence : found) all += sentence + "\n";
  for (const char* word : words)
    if (all.find(word) == std::string::npos) {
      MESSAGE("missing '" << std::string(word) << "' in: " << all);
      return false;
    }
  return true;
}

inline MeshShape mesh_of(int dp, int tp) {
  MeshShape shape;
  shape.dp = dp;
  shape.tp = tp;
  return shape;
}

} // namespace triax
