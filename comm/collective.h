// Collectives are operations: issued on a stream, recorded, planned and checked like any other.
#pragma once
#include "comm/transport.h"
#include "kernels/device.h"

namespace triax {

/// Issues collectives of one group in a sequence that every rank of the group must follow. A group of one issues
/// nothing.
class Collectives {
public:
  Collectives(Device& device, Transport& transport, Group group);
  ~Collectives();
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;
  int size() const { return call_.group.size(); }
  /// A step begins: sequence numbers start again.
  void begin() { sequence_ = 0; }
  /// t (f32[n], dense) becomes its sum over the group.
  void all_reduce(Stream stream, const Tensor& t);

  /// What a launch needs beside the operation; lives as long as the object.
  struct Call {
    Device* device;
    Transport* transport;
    Group group;
    std::vector<float> stage; ///< host memory, where MPI cannot reach the device's
  };

private:
  Call call_;
  int64_t sequence_ = 0;
};

} // namespace triax
