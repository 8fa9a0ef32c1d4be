// The parameter table: one row per parameter of an architecture. Allocation, initialisation, decay, sharding, buckets,
// checkpoint keys and counts all derive from it.
#pragma once
#include "kernels/tensor.h"
#include "model/config.h"
#include <string>
#include <vector>

namespace triax {

/// What a parameter is to its layer. `up` holds gate and up, one above the other, where the activation is gated;
/// `qk_norm` the weights of all query heads and of all key heads, [2D].
enum class Role {
  embedding,
  positions,
  norm1,
  norm1_bias,
  qkv,
  qkv_bias,
  qk_norm,
  out,
  out_bias,
  norm2,
  norm2_bias,
  up,
  up_bias,
  down,
  down_bias,
  final_norm,
  final_norm_bias,
  head
};

/// Rows [first, first + rows) of a parameter, as they stand under a name in Hugging Face files (transposed: [columns,
/// rows] there).
struct Piece {
  std::string name;
  int64_t first = 0, rows = 0;
  bool transposed = false;
};

struct Parameter {
  Role role;
  int64_t layer = -1; ///< -1: outside the layers
  std::string name;   ///< "layers.3.qkv.weight"
  int64_t rows = 0, columns = 1;
  bool vector = false;  ///< [rows] instead of [rows, columns]
  int sharded_dim = -1; ///< which dim a tensor-parallel group splits; -1: none
  float init_std = 0;   ///< of a normal distribution; 0: the constant below
  float init_constant = 0;
  bool decay = false;
  int64_t offset = 0; ///< of the first element in the flat parameter space
  std::vector<Piece> pieces;
  int64_t size() const { return rows * columns; }
};

/// What decays first (matrices: embedding, layers upwards, head), so that the backward pass finishes it from the end
/// down; then the rest (vectors).
class ParamTable {
public:
  explicit ParamTable(const ModelConfig& config);
  const std::vector<Parameter>& rows() const { return rows_; }
  const Parameter* find(Role role, int64_t layer = -1) const; ///< null where the model has none
  int64_t count() const;                                      ///< of parameters, without padding
  int64_t elements() const {
    return elements_;
  } ///< of the flat space; each parameter starts at a multiple of kParamAlignment
  int64_t decayed_elements() const { return decayed_elements_; } ///< [0, this) decays, the rest does not

private:
  std::vector<Parameter> rows_;
  int64_t elements_ = 0, decayed_elements_ = 0;
};
constexpr int64_t kParamAlignment = 128;

/// The parameter's own view of a flat buffer ([elements], any dtype): [rows, columns] or [rows]; empty for a null
/// parameter.
Tensor view_of(const Tensor& flat, const Parameter* parameter);

} // namespace triax
