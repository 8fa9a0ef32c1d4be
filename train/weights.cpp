#include "train/weights.h"
#include <algorithm>
#include <cstring>

namespace triax {
namespace {

std::vector<int64_t> stored_shape(const Parameter& p, const Piece& piece) {
  if (p.vector) return {piece.rows};
  return piece.transposed ? std::vector<int64_t>{p.columns, piece.rows} : std::vector<int64_t>{piece.rows, p.columns};
}

/// The tensor of that name; files of GPT-2 without the head (the original ones) leave the prefix out.
const StoredTensor& find_stored(const SafetensorsFolder& files, const std::string& prefix, const std::string& name) {
  constexpr const char* kTrunk = "transformer.";
  if (name.rfind(kTrunk, 0) == 0 && !files.find(prefix + name))
    if (const StoredTensor* bare = files.find(prefix + name.substr(std::strlen(kTrunk)))) return *bare;
  return files.at(prefix + name);
}

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += concat(i ? ", " : "", shape[i]);
  return text + "]";
}

template <class T> std::vector<T> transpose(const T* from, int64_t rows, int64_t columns) {
  std::vector<T> to(size_t(rows * columns));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) to[size_t(c * rows + r)] = from[r * columns + c];
  return to;
}

template <class T>
void store_as(SafetensorsWriter& writer, Device& device, const ParamTable& table, const Tensor& flat) {
  std::vector<T> host;
  for (const Parameter& p : table.rows()) {
    host.resize(size_t(p.size()));
    device.read(flat.slice(0, p.offset, p.size()), host.data());
    for (const Piece& piece : p.pieces) {
      const T* at = host.data() + piece.first * p.columns;
      const int64_t bytes = piece.rows * p.columns * int64_t(sizeof(T));
      piece.transposed ? writer.write(transpose(at, piece.rows, p.columns).data(), bytes) : writer.write(at, bytes);
    }
  }
}

uint16_t bf16_bits(float f) { // to nearest even; exact for what was bf16 before
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return (u & 0x7fffffffu) > 0x7f800000u ? uint16_t(0x7fff) : uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

} // namespace

std::vector<TensorHeader> stored_tensors(const ParamTable& table, const std::string& prefix, Dtype dtype) {
  std::vector<TensorHeader> headers;
  for (const Parameter& p : table.rows())
    for (const Piece& piece : p.pieces)
      headers.push_back(
          {prefix + piece.name, dtype == Dtype::bf16 ? StoredType::bf16 : StoredType::f32, stored_shape(p, piece)});
  return headers;
}

void store(SafetensorsWriter& writer, Device& device, const ParamTable& table, const Tensor& flat) {
  flat.dtype == Dtype::bf16 ? store_as<uint16_t>(writer, device, table, flat)
                            : store_as<float>(writer, device, table, flat);
}

void restore(const SafetensorsFolder& files, const std::string& prefix, Device& device, const ParamTable& table,
             const Tensor& flat) {
  std::vector<float> values;
  std::vector<uint16_t> bits;
  for (const Parameter& p : table.rows()) {
    values.assign(size_t(p.size()), 0.0f);
    for (const Piece& piece : p.pieces) {
      const StoredTensor& stored = find_stored(files, prefix, piece.name);
      const auto shape = stored_shape(p, piece);
      DEMAND(stored.shape == shape, "tensor ", stored.name, " has shape ", text_of(stored.shape),
             ", but this model needs ", text_of(shape), "; the files and the configuration belong to different models");
      const int64_t count = piece.rows * p.columns;
      float* at = values.data() + piece.first * p.columns;
      read_floats(stored, 0, count, at);
      if (piece.transposed) {
        const auto turned = transpose(at, p.columns, piece.rows);
        std::copy(turned.begin(), turned.end(), at);
      }
    }
    const Tensor to = flat.slice(0, p.offset, p.size());
    if (flat.dtype == Dtype::bf16) {
      bits.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) bits[i] = bf16_bits(values[i]);
      device.write(to, bits.data());
    } else {
      device.write(to, values.data());
    }
  }
}

} // namespace triax
