// A tensor is a non-owning view: address, space, dtype, at most four dims with strides. Passed by value.
#pragma once
#include "kernels/check.h"
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

// Accessors used inside kernel units, which are compiled for several instruction sets: they must never be merged by the
// linker.
#define TRIAX_INLINE inline __attribute__((always_inline))

namespace triax {

enum class Dtype : uint8_t { f32, bf16, i32, u8 };
enum class Space : uint8_t { device, host, pinned };
constexpr int kSpaces = 3;
constexpr int kMaxDims = 4;

int64_t bytes_of(Dtype dtype);
const char* name_of(Dtype dtype);
const char* name_of(Space space);

struct Tensor {
  uint64_t address = 0;                          ///< of the first element; on a ghost device no memory lies behind it
  std::array<int64_t, kMaxDims> dim{1, 1, 1, 1}; ///< [0, rank) are meant, the rest are 1
  std::array<int64_t, kMaxDims> stride{0, 0, 0, 0}; ///< in elements
  int32_t rank = 0;
  Dtype dtype = Dtype::f32;
  Space space = Space::device;

  /// A dense row-major view of `shape` at `address`.
  static Tensor dense(uint64_t address, Space space, Dtype dtype, std::initializer_list<int64_t> shape);

  TRIAX_INLINE int64_t size() const { return dim[0] * dim[1] * dim[2] * dim[3]; }
  int64_t bytes() const;           ///< of the elements, not of the gaps between rows
  bool dense() const;              ///< row-major without gaps
  int64_t extent() const;          ///< bytes from the first element to behind the last, gaps included
  int64_t offset(int64_t n) const; ///< in elements from the first, of the n-th in row-major order
  TRIAX_INLINE bool empty() const { return rank == 0; } ///< an absent operand
  template <class T> TRIAX_INLINE T* data() const { return reinterpret_cast<T*>(address); }

  /// Entries [first, first + count) of dim `d`.
  Tensor slice(int d, int64_t first, int64_t count) const;
  /// The same elements under another shape; the tensor must be dense.
  Tensor view(std::initializer_list<int64_t> shape) const;
  std::string describe() const; ///< "bf16[4096, 512]"
};

/// Do the two strided boxes share a byte? Exact where both have the same row pitch, which is what chunks of rows or
/// columns of one buffer have; otherwise decided row by row, and at worst (very many rows) reported as shared.
bool overlap(const Tensor& a, const Tensor& b);

/// The number of this dtype that stands at `from`.
double number_at(Dtype dtype, const std::byte* from);

/// Does `t` have exactly this dtype and shape? Used as ENSURE(is(...)) where a shape is written.
bool is(const Tensor& t, Dtype dtype, std::initializer_list<int64_t> shape);

} // namespace triax
