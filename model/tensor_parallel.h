// Linear layers whose weights are parted over a group of ranks, between activations whose rows are parted over the same
// group (Korthikanti et al. 2022, sequence parallelism). A group of one issues the plain products.
#pragma once
#include "comm/collective.h"

namespace triax {

/// A rank holds N / tp of the N rows. They are cut in `chunks`: rows [c N / chunks, (c + 1) N / chunks) of the whole
/// are rows [c N / (chunks tp), ...) of every rank, so that a chunk is gathered, or reduced, while another is
/// multiplied.
class TensorParallel {
public:
  /// Alone.
  explicit TensorParallel(Device& device) : device_(device) {}
  /// `group` of the tensor axes; `state` holds the StepState, which knows this rank's place in the group.
  TensorParallel(Device& device, Collectives& group, int64_t chunks, const Tensor& state)
      : device_(device), group_(&group), chunks_(chunks), state_(state) {}

  int64_t size() const { return group_ ? group_->size() : 1; }
  /// The number, among all rows, of row `own` of the `own_rows` = N / tp that rank `rank` of the group holds.
  static int64_t row_of(int64_t own, int64_t own_rows, int rank, int64_t ranks, int64_t chunks);
  /// Empty where the group has one rank: then operations take the table or the logits for whole.
  Tensor state() const { return size() > 1 ? state_ : Tensor{}; }

  /// A tensor of all rows, gathered; it is `mine` itself in a group of one.
  class Whole {
  public:
    operator const Tensor&() const { return tensor_; }

  private:
    friend class TensorParallel;
    Tensor tensor_;
    Allocation held_;
    std::vector<Event> there_; ///< by chunk, of the exchange stream
  };
  Whole gather(const Tensor& mine); ///< done for the compute stream
  /// all [tp, ...] = every rank's `own` [1, ...], likewise.
  void gather_into(const Tensor& all, const Tensor& own);

  // x, w, b and their gradients as at `matmul`; y[N, O] = x[N, I] w[O, I]^T + b[O].
  // Where dweight is empty, the weight's gradient is left for `..._weights`.
  /// w's rows are parted: y[N, O / tp] from x[N / tp, I].
  void columns(const Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias);
  void columns_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy, const Tensor& x,
                        const Tensor& weight);
  void columns_weights(const Tensor& dweight, const Tensor& dy, const Tensor& x);
  /// w's columns are parted: y[N / tp, O] from x[N, I / tp], a sum over ranks.
  void rows(const Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias);
  void rows_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy, const Tensor& x,
                     const Tensor& weight);
  void rows_weights(const Tensor& dweight, const Tensor& dy, const Tensor& x);
  /// y[N / tp, O] = the sum over ranks of partial[N, O].
  void scatter(const Tensor& y, const Tensor& partial);

private:
  Tensor chunk(const Tensor& t, int64_t c) const; ///< of rows, whole or this rank's
  Whole start_gather(const Tensor& mine);
  void scatter_chunk(const Tensor& y, const Tensor& partial, int64_t c);
  // What a rank does by itself: a group of one does no more.
  void product(const Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias);
  void product_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy, const Tensor& x,
                        const Tensor& weight);
  void weight_gradients(const Tensor& dweight, const Tensor& dbias, const Tensor& dy, const Tensor& x);
  Device& device_;
  Collectives* group_ = nullptr;
  int64_t chunks_ = 1;
  Tensor state_;
};

} // namespace triax
