#include "kernels/tensor.h"
#include <algorithm>
#include <cstring>
#include <vector>

namespace triax {

int64_t bytes_of(Dtype dtype) {
  switch (dtype) {
  case Dtype::bf16:
    return 2;
  case Dtype::u8:
    return 1;
  default:
    return 4;
  }
}

const char* name_of(Dtype dtype) {
  constexpr const char* kNames[] = {"f32", "bf16", "i32", "u8"};
  return kNames[int(dtype)];
}

const char* name_of(Space space) {
  constexpr const char* kNames[] = {"device", "host", "pinned"};
  return kNames[int(space)];
}

Tensor Tensor::dense(uint64_t address, Space space, Dtype dtype, std::initializer_list<int64_t> shape) {
  ENSURE(shape.size() >= 1 && shape.size() <= kMaxDims, "a tensor has 1 to ", kMaxDims, " dims, not ", shape.size());
  Tensor t;
  t.address = address;
  t.space = space;
  t.dtype = dtype;
  t.rank = int32_t(shape.size());
  std::copy(shape.begin(), shape.end(), t.dim.begin());
  for (int64_t d = t.rank - 1, step = 1; d >= 0; step *= t.dim[d--]) t.stride[d] = step;
  return t;
}

int64_t Tensor::bytes() const { return size() * bytes_of(dtype); }

int64_t Tensor::extent() const {
  int64_t last = 0;
  for (int d = 0; d < rank; ++d) last += (dim[d] - 1) * stride[d];
  return size() == 0 ? 0 : (last + 1) * bytes_of(dtype);
}

int64_t Tensor::offset(int64_t n) const {
  int64_t at = 0;
  for (int d = rank - 1; d >= 0; n /= dim[d--]) at += n % dim[d] * stride[d];
  return at;
}

double number_at(Dtype dtype, const std::byte* from) {
  uint32_t word = 0;
  std::memcpy(&word, from, size_t(bytes_of(dtype)));
  if (dtype == Dtype::u8) return word;
  if (dtype == Dtype::i32) return double(int32_t(word));
  if (dtype == Dtype::bf16) word <<= 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return double(value);
}

bool Tensor::dense() const {
  for (int64_t d = rank - 1, step = 1; d >= 0; step *= dim[d--])
    if (dim[d] != 1 && stride[d] != step) return false;
  return true;
}

Tensor Tensor::slice(int d, int64_t first, int64_t count) const {
  ENSURE(d >= 0 && d < rank && first >= 0 && count >= 0 && first + count <= dim[d], "slice [", first, ", ",
         first + count, ") of dim ", d, " of ", describe());
  Tensor t = *this;
  t.address += uint64_t(first * stride[d] * bytes_of(dtype));
  t.dim[d] = count;
  return t;
}

Tensor Tensor::view(std::initializer_list<int64_t> shape) const {
  Tensor t = dense(address, space, dtype, shape);
  ENSURE(dense() && t.size() == size(), describe(), " cannot be viewed as ", t.describe());
  return t;
}

std::string Tensor::describe() const {
  std::string text = concat(name_of(dtype), "[");
  for (int d = 0; d < rank; ++d) text += concat(d ? ", " : "", dim[d]);
  return text + "]";
}

bool is(const Tensor& t, Dtype dtype, std::initializer_list<int64_t> shape) {
  return t.dtype == dtype && t.rank == int32_t(shape.size()) && std::equal(shape.begin(), shape.end(), t.dim.begin());
}

namespace {

/// A box as rows of contiguous bytes: `rows` runs of `width` bytes, `pitch` apart.
struct Rows {
  uint64_t begin;
  int64_t width, pitch, rows;
  uint64_t end() const { return begin + uint64_t(pitch * (rows - 1) + width); }
};

/// Splits a tensor into boxes of two levels; outer dims beyond them are enumerated.
std::vector<Rows> rows_of(const Tensor& t) {
  std::vector<std::pair<int64_t, int64_t>> dims; // (count, stride in bytes), outermost first, merged where contiguous
  const int64_t element = bytes_of(t.dtype);
  for (int d = 0; d < t.rank; ++d) {
    if (t.dim[d] == 0) return {};
    if (t.dim[d] == 1) continue;
    if (!dims.empty() && dims.back().second == t.dim[d] * t.stride[d] * element)
      dims.back() = {dims.back().first * t.dim[d], t.stride[d] * element};
    else
      dims.emplace_back(t.dim[d], t.stride[d] * element);
  }
  int64_t width = element;
  if (!dims.empty() && dims.back().second == element) {
    width = dims.back().first * element;
    dims.pop_back();
  }
  Rows inner{t.address, width, width, 1};
  if (!dims.empty()) {
    inner.pitch = dims.back().second;
    inner.rows = dims.back().first;
    dims.pop_back();
  }
  std::vector<Rows> boxes{inner};
  for (; !dims.empty(); dims.pop_back()) {
    std::vector<Rows> more;
    for (int64_t i = 0; i < dims.back().first; ++i)
      for (Rows r : boxes) {
        r.begin += uint64_t(i * dims.back().second);
        more.push_back(r);
      }
    boxes = std::move(more);
  }
  return boxes;
}

bool cut(int64_t a, int64_t a_end, int64_t b, int64_t b_end) { return a < b_end && b < a_end; }

bool overlap(const Rows& a, const Rows& b) {
  if (a.begin >= b.end() || b.begin >= a.end()) return false;
  if (a.rows == 1 && b.rows == 1) return true;
  const int64_t pitch = a.rows > 1 ? a.pitch : b.pitch;
  if ((a.rows > 1 && a.pitch != pitch) || (b.rows > 1 && b.pitch != pitch) || a.width > pitch || b.width > pitch) {
    const Rows& few = a.rows <= b.rows ? a : b;
    const Rows& many = a.rows <= b.rows ? b : a;
    if (few.rows > 4096) return true;
    for (int64_t i = 0; i < few.rows; ++i) { // the rows of `many` that may touch this one
      const uint64_t row = few.begin + uint64_t(i * few.pitch);
      const int64_t lead = int64_t(row) - int64_t(many.begin);
      const int64_t first = std::clamp<int64_t>((lead - many.width) / many.pitch, 0, many.rows - 1);
      for (int64_t k = first; k < many.rows; ++k) {
        const int64_t at = k * many.pitch;
        if (at >= lead + few.width) break;
        if (cut(lead, lead + few.width, at, at + many.width)) return true;
      }
    }
    return false;
  }
  // One pitch: place b relative to a; b's row i lies at row shift + i, columns [column, column + width), perhaps
  // wrapping.
  const int64_t delta = int64_t(b.begin) - int64_t(a.begin);
  const int64_t shift = delta >= 0 ? delta / pitch : -((-delta + pitch - 1) / pitch);
  const int64_t column = delta - shift * pitch;
  const bool same_row = cut(0, a.rows, shift, shift + b.rows) && cut(0, a.width, column, column + b.width);
  const bool wrapped = cut(0, a.rows, shift + 1, shift + 1 + b.rows) && column + b.width > pitch;
  return same_row || wrapped;
}

} // namespace

bool overlap(const Tensor& a, const Tensor& b) {
  if (a.space != b.space) return false;
  for (const Rows& x : rows_of(a))
    for (const Rows& y : rows_of(b))
      if (overlap(x, y)) return true;
  return false;
}

} // namespace triax
