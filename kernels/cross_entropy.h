// Softmax cross-entropy over a chunk of rows, so that the logits of a whole batch never exist at once.
#pragma once
#include "kernels/op.h"

namespace triax {

/// losses f32[n] = -log softmax(logits[n, V])[labels[n]], 0 where the label is -1 (not counted). With `backward` the
/// logits are overwritten by scale * d loss / d logits (0 in rows that are not counted), else they are only read.
Op cross_entropy(const Tensor& losses, const Tensor& logits, const Tensor& labels, float scale, bool backward);

// The same where the classes are parted over the ranks of a group, V / ranks (rounded up) columns on each: `state`
// knows the rank, `classes` is V, and columns behind it are not read.

/// statistics f32[n, 3]: of this rank's columns the largest logit, the sum of exp(logit - largest), and the label's
/// logit, the lowest number where the label is another rank's.
Op softmax_statistics(const Tensor& statistics, const Tensor& logits, const Tensor& labels, const Tensor& state,
                      int64_t classes);
/// `statistics` f32[ranks, n, 3] of all ranks. Otherwise as `cross_entropy`; columns behind V become 0.
Op cross_entropy_parts(const Tensor& losses, const Tensor& logits, const Tensor& labels, const Tensor& statistics,
                       const Tensor& state, int64_t classes, float scale, bool backward);

/// scalars[kLossSum] += sum of losses f32[N], scalars[kTokenCount] += number of labels i32[N] that are not -1; in a
/// fixed order.
Op sum_losses(const Tensor& scalars, const Tensor& losses, const Tensor& labels);

} // namespace triax
