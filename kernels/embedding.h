// Token (and learned position) embedding.
#pragma once
#include "kernels/op.h"

namespace triax {

/// y[N, C] = table[tokens[n]] (+ positions[n mod T]); table [V, C], positions [T, C] or absent. Tokens must lie in [0,
/// V). With an `index`, i32[P], row n takes positions[index[n mod P]]: a rank that has P of the T. With a `state`, the
/// table is this rank's part of the vocabulary, from row tensor_rank * V on: other tokens give 0, and only tensor_rank
/// 0 adds positions, so that the sum over ranks is the embedding.
Op embedding_forward(const Tensor& y, const Tensor& tokens, const Tensor& table, const Tensor& positions,
                     const Tensor& state = {}, const Tensor& index = {});

/// dtable[V, C] and dpositions[T, C] (f32, absent where there are none) accumulate dy[N, C] without atomics: `order`
/// i32[N] lists the rows sorted by token, stably, so that each table row is summed by one block in the order of its
/// rows. With a `state` as above, tokens of other ranks are passed over; dpositions is whole on every rank. No position
/// stands twice in the `index`.
Op embedding_backward(const Tensor& dtable, const Tensor& dpositions, const Tensor& dy, const Tensor& tokens,
                      const Tensor& order, const Tensor& state = {}, const Tensor& index = {});

} // namespace triax
