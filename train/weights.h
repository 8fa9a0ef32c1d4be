// Flat parameter buffers to and from tensors of Hugging Face names and layouts.
#pragma once
#include "kernels/device.h"
#include "model/params.h"
#include "train/safetensors.h"

namespace triax {

/// What `store` writes: every piece of every parameter as PREFIX + its Hugging Face name, in the table's order.
std::vector<TensorHeader> stored_tensors(const ParamTable& table, const std::string& prefix, Dtype dtype);
/// Writes the buffer's parameters, fused ones taken apart, transposed ones turned.
void store(SafetensorsWriter& writer, Device& device, const ParamTable& table, const Tensor& flat);
/// The inverse, from any float type; throws where a tensor is missing or has another shape. Padding becomes zero.
void restore(const SafetensorsFolder& files, const std::string& prefix, Device& device, const ParamTable& table,
             const Tensor& flat);

} // namespace triax
