#include "kernels/embedding.h"
#include "kernels/step_state.h"
#include <algorithm>

namespace triax {
namespace {

/// A table of which at most one row per token is touched.
double touched_bytes(const Tensor& table, int64_t tokens) {
  return double(std::min(table.dim[0], tokens) * table.dim[1] * bytes_of(table.dtype));
}

Description describe_forward(const Target&, const Op& op) {
  const Tensor &y = op[0], &table = op[2];
  return {.flops = op.has(3) ? double(y.size()) : 0.0,
          .bytes = operand_bytes(op) - double(table.bytes()) + touched_bytes(table, y.dim[0]),
          .kernels = {"embedding_forward"}};
}

Description describe_backward(const Target&, const Op& op) {
  const Tensor &dtable = op[0], &dy = op[2];
  Description d{.flops = double(dy.size()) * (op.has(1) ? 2.0 : 1.0),
                .bytes = operand_bytes(op) - 2.0 * double(dtable.bytes()) + 2.0 * touched_bytes(dtable, dy.dim[0]),
                .kernels = {"embedding_backward"}};
  if (op.has(1)) d.kernels = {"embedding_backward", "position_backward"};
  return d;
}

const OpKind kForward{"embedding_forward", describe_forward};
const OpKind kBackward{"embedding_backward", describe_backward};

void ensure_shapes(const Tensor& y, const Tensor& tokens, const Tensor& table, const Tensor& positions,
                   const Tensor& state, const Tensor& index) {
  const int64_t columns = y.dim[1];
  ENSURE(y.rank == 2 && y.dense() && (y.dtype == Dtype::f32 || y.dtype == Dtype::bf16), "embedding: rows are ",
         y.describe());
  ENSURE(is(tokens, Dtype::i32, {y.dim[0]}) && tokens.dense(), "embedding: tokens are ", tokens.describe(), " for ",
         y.describe());
  ENSURE(table.rank == 2 && table.dim[1] == columns && table.dense(), "embedding: table is ", table.describe(), " for ",
         y.describe());
  ENSURE(positions.empty() ||
             (is(positions, table.dtype, {positions.dim[0], columns}) && positions.dense() && positions.dim[0] > 0),
         "embedding: positions are ", positions.describe(), " for ", y.describe());
  ENSURE(state.empty() || is(state, Dtype::u8, {int64_t(sizeof(StepState))}), "embedding: state is ", state.describe());
  ENSURE(index.empty() || (!positions.empty() && is(index, Dtype::i32, {index.dim[0]}) && index.dense() &&
                           index.dim[0] > 0 && index.dim[0] <= positions.dim[0]),
         "embedding: index is ", index.describe(), " of positions ", positions.describe());
}

} // namespace

Op embedding_forward(const Tensor& y, const Tensor& tokens, const Tensor& table, const Tensor& positions,
                     const Tensor& state, const Tensor& index) {
  ensure_shapes(y, tokens, table, positions, state, index);
  ENSURE(table.dtype == y.dtype, "embedding: table is ", table.describe(), " for ", y.describe());
  return Op(kForward).write(y).read(tokens).read(table).read(positions).read(state).read(index);
}

Op embedding_backward(const Tensor& dtable, const Tensor& dpositions, const Tensor& dy, const Tensor& tokens,
                      const Tensor& order, const Tensor& state, const Tensor& index) {
  ensure_shapes(dy, tokens, dtable, dpositions, state, index);
  ENSURE(dtable.dtype == Dtype::f32, "embedding: gradient of the table is ", dtable.describe());
  ENSURE(is(order, Dtype::i32, {dy.dim[0]}) && order.dense(), "embedding: order is ", order.describe(), " for ",
         dy.describe());
  return Op(kBackward).update(dtable).update(dpositions).read(dy).read(tokens).read(order).read(state).read(index);
}

} // namespace triax
