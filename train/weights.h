// What a rank holds of the parameters, to and from tensors of Hugging Face names and layouts.
#pragma once
#include "comm/transport.h"
#include "kernels/device.h"
#include "model/params.h"
#include "train/safetensors.h"
#include <functional>

namespace triax {

/// Which elements of the model a rank owns: its part of the table, of which it has piece `index` of `pieces` of each
/// unit.
struct Layout {
  const ParamTable& table;
  int tensor_rank = 0; ///< in the group over which the table is cut
  int64_t pieces = 1, index = 0;
};

/// What a rank owns of a parameter: [begin, end) of its flat space, from element `at` of its own buffer on.
struct OwnedRange {
  OwnedRange(const Layout& layout, const Parameter& parameter);
  int64_t begin, end, at;
  int64_t count() const { return end - begin; }
};

/// Elements first, first + stride, ... of a tensor in row-major order.
struct ElementRun {
  int64_t first, count, stride;
};
void append(std::vector<ElementRun>& runs, const ElementRun& run); ///< to the last one where it goes on from there
std::vector<float> floats_of(Dtype dtype, const std::byte* from, int64_t count); ///< f32 or bf16

/// What a rank gives to a tensor of the files: no elements that another rank of its tensor-parallel group gives too.
struct OwnedPart {
  std::string name;
  int64_t layer; ///< -1: outside the layers
  std::vector<int64_t> shape;
  std::vector<ElementRun> runs;
  std::vector<float> values; ///< of the runs, one behind the other
};
/// Of every tensor in the table's order, also where this rank has nothing of it.
void each_owned(Device& device, const Layout& layout, const Tensor& owned,
                const std::function<void(const OwnedPart&)>& visit);

/// What `store` writes: every tensor of the model as PREFIX + its Hugging Face name, in the table's order.
std::vector<TensorHeader> stored_tensors(const ParamTable& table, const std::string& prefix, Dtype dtype);

/// Writes the parameters that all ranks own together, fused ones taken apart, transposed ones turned. Collective: each
/// rank lays what it owns into a chunk of a tensor, and the chunk is put together on rank 0, which has the writer (null
/// elsewhere), so that no rank holds more than a chunk beside its own. `owned` [elements of the table / pieces];
/// `counts`: this rank is the one to give what several hold alike.
void store(SafetensorsWriter* writer, Transport& transport, Device& device, const Layout& layout, const Tensor& owned,
           bool counts);

/// The inverse, from any float type: each rank reads what it owns. Throws where a tensor is missing or has another
/// shape. Padding becomes zero.
void restore(const SafetensorsFolder& files, const std::string& prefix, Device& device, const Layout& layout,
             const Tensor& owned);

} // namespace triax
