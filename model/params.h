// The parameter table: one row per parameter of an architecture. Allocation, initialisation, decay, sharding, buckets,
// checkpoint keys and counts all derive from it.
#pragma once
#include "kernels/adamw.h"
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
constexpr int kRoles = int(Role::head) + 1;

/// How a tensor-parallel group parts a piece: each rank holds all of it, some of its rows, or some of its columns.
enum class Parted { whole, rows, columns };

/// Rows [first, first + rows) of a parameter, as they stand under a name in Hugging Face files (transposed: [columns,
/// rows] there). What one rank holds, of what is there in all.
struct Piece {
  std::string name;
  int64_t first = 0, rows = 0; ///< of the rank's parameter
  bool transposed = false;
  Parted parted = Parted::whole;
  int64_t copies = 1;              ///< neighbours in the group that hold the same part
  int64_t all_rows = 0;            ///< in all ranks, without padding
  int64_t all_columns = 1;         ///
  int64_t first_of_all = 0;        ///< row of the whole parameter at which the whole piece begins
  int64_t rows_at(int rank) const; ///< that are no padding, on a rank of the group
  int64_t first_row_at(int rank) const { return parted == Parted::rows ? rank / copies * rows : 0; }
};

struct Parameter {
  Role role;
  int64_t layer = -1;            ///< -1: outside the layers
  std::string name;              ///< "layers.3.qkv.weight"
  int64_t rows = 0, columns = 1; ///< on one rank
  bool vector = false;           ///< [rows] instead of [rows, columns]
  float init_std = 0;            ///< of a normal distribution; 0: the constant below
  float init_constant = 0;
  bool decay = false;
  bool is_copy = false; ///< of the embedding, as the head of a rank that may not have that: no file has it
  uint32_t number = 0;  ///< among the model's: keys its random numbers; a copy has the embedding's
  int64_t offset = 0;   ///< of the first element in the rank's flat parameter space
  int32_t unit = -1;    ///< of which part; -1: another stage's
  std::vector<Piece> pieces;
  int64_t size() const { return rows * columns; }
  int64_t first_column_at(int rank) const { return pieces[0].parted == Parted::columns ? rank * columns : 0; }
};

/// A part of the flat space that is gathered, reduced and updated as a whole: the embedding, a layer, the head. What
/// decays comes first, and what ranks of the tensor-parallel group hold alike last: from `copied_from` on what
/// Cut::copies of them do (keys and values), from `whole_from` on what all do.
struct Unit {
  std::string name;
  int32_t number = 0; ///< among the whole model's
  int64_t begin = 0;
  int64_t elements = 0;  ///< padded so that every shard is whole blocks of kShardBlock
  int64_t canonical = 0; ///< where it begins in the whole model when nothing is padded for shards
  int64_t length = 0;    ///< elements without padding for shards, a multiple of kShardBlock
  int64_t decay_to = 0, copied_from = 0, whole_from = 0; ///< from the unit's begin
  bool partial = false; ///< gradients from `whole_from` on are parts of a sum over ranks; else each has the whole
  bool is_copy = false; ///< of the embedding's
};

/// Layers [first, first + count) of the model; the embedding stands before the first, the head behind the last.
struct LayerRange {
  int64_t first = 0, count = 0;
  bool embedding = false, head = false;
};

/// How a rank's share is cut: over a tensor-parallel group of `tensor` ranks, `copies` of which hold the same
/// key/value heads, and into `shards` pieces of each unit; a stage of a pipeline has some `chunks` of layers (empty:
/// all). With `head_copy` a tied head is a copy of the embedding, whose gradients are summed by themselves.
struct Cut {
  int tensor = 1, copies = 1, shards = 1;
  std::vector<LayerRange> chunks = {};
  bool head_copy = false;
};
/// How many neighbours of `tensor` ranks hold the same key/value heads. Throws where heads or MLP do not part evenly.
int kv_copies(const ModelConfig& config, int tensor);

/// All parameters of a model, and the units that one rank has, one behind the other in the order of the model.
class ParamTable {
public:
  explicit ParamTable(const ModelConfig& config, Cut cut = {});
  const std::vector<Parameter>& rows() const { return rows_; } ///< in the order of the model
  const std::vector<Unit>& units() const { return units_; }    ///< of this rank's stage
  int64_t all_units() const { return all_units_; }             ///< of the whole model, copies left out
  const Cut& cut() const { return cut_; }
  const Parameter* find(Role role, int64_t layer = -1) const; ///< null where the model has none
  int unit_of(Role role, int64_t layer = -1) const;           ///< -1 where this rank has none
  int64_t count() const;                                      ///< of the model's parameters, without padding
  int64_t elements() const { return elements_; } ///< of one rank's flat space; parameters start at kParamAlignment

private:
  void add_unit(std::string name, const std::vector<Role>& parted, const std::vector<Role>& whole, int64_t layer,
                bool is_here);
  Cut cut_;
  std::vector<Parameter> rows_;
  std::vector<int32_t> index_; ///< of rows_, by layer + 1 and role; -1 where the model has none
  std::vector<Unit> units_;
  int64_t all_units_ = 0, elements_ = 0, canonical_ = 0;
};
constexpr int64_t kParamAlignment = 128;
constexpr int64_t kShardBlock = kNormBlock; ///< shards are cut at whole partial sums of the norm

/// The parameter's own view of its unit's buffer ([elements of the unit], any dtype): [rows, columns] or [rows]; empty
/// for a null parameter or an empty buffer.
Tensor view_of(const Tensor& unit, const ParamTable& table, const Parameter* parameter);
/// A unit of a flat buffer [elements of the table]; empty for an empty buffer.
Tensor unit_of(const Tensor& flat, const Unit& unit);

} // namespace triax
