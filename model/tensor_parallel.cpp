#include "model/tensor_parallel.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"

namespace triax {

int64_t TensorParallel::row_of(int64_t own, int64_t own_rows, int rank, int64_t ranks, int64_t chunks) {
  if (ranks == 1) return own; // and the rows need not part into chunks
  const int64_t rows = own_rows / chunks;
  return (own / rows * ranks + rank) * rows + own % rows;
}

Tensor TensorParallel::chunk(const Tensor& t, int64_t c) const {
  const int64_t rows = t.dim[0] / chunks_;
  return t.slice(0, c * rows, rows);
}

TensorParallel::Whole TensorParallel::start_gather(const Tensor& mine) {
  Whole whole;
  whole.tensor_ = mine;
  if (size() == 1) return whole;
  whole.held_ =
      device_.allocate("gathered rows", Purpose::communication, mine.dtype, {mine.dim[0] * size(), mine.dim[1]});
  whole.tensor_ = *whole.held_;
  group_->follow_compute();
  for (int64_t c = 0; c < chunks_; ++c) {
    group_->all_gather(chunk(whole.tensor_, c), chunk(mine, c));
    whole.there_.push_back(group_->stream().record());
  }
  return whole;
}

TensorParallel::Whole TensorParallel::gather(const Tensor& mine) {
  Whole whole = start_gather(mine);
  if (size() > 1) device_.compute().wait(whole.there_.back());
  return whole;
}

void TensorParallel::gather_into(const Tensor& all, const Tensor& own) {
  group_->in_line([&] { group_->all_gather(all, own); });
}

void TensorParallel::scatter_chunk(const Tensor& y, const Tensor& partial, int64_t c) {
  group_->follow_compute();
  group_->reduce_scatter(chunk(y, c).view({y.size() / chunks_}), chunk(partial, c).view({partial.size() / chunks_}));
}

void TensorParallel::scatter(const Tensor& y, const Tensor& partial) {
  ENSURE(size() > 1, "rows of a group of one are not scattered");
  for (int64_t c = 0; c < chunks_; ++c) scatter_chunk(y, partial, c);
  group_->compute_follows();
}

void TensorParallel::columns(const Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (size() == 1) return product(y, x, weight, bias);
  const Whole whole = start_gather(x);
  for (int64_t c = 0; c < chunks_; ++c) {
    device_.compute().wait(whole.there_[size_t(c)]);
    product(chunk(y, c), chunk(whole, c), weight, bias);
  }
}

void TensorParallel::rows(const Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (size() == 1) return product(y, x, weight, bias);
  const Allocation partial = device_.allocate("partial sums", Purpose::communication, y.dtype, {x.dim[0], y.dim[1]});
  for (int64_t c = 0; c < chunks_; ++c) {
    product(chunk(partial, c), chunk(x, c), weight, {});
    scatter_chunk(y, partial, c);
  }
  group_->compute_follows();
  if (!bias.empty()) device_.compute().run(add_bias(y, bias));
}

void TensorParallel::product(const Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  device_.compute().run(matmul({.c = y, .a = x, .b = weight, .bias = bias, .transpose_b = true}));
}

void TensorParallel::product_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                                      const Tensor& x, const Tensor& weight) {
  weight_gradients(dweight, dbias, dy, x);
  device_.compute().run(matmul({.c = dx, .a = dy, .b = weight}));
}

void TensorParallel::weight_gradients(const Tensor& dweight, const Tensor& dbias, const Tensor& dy, const Tensor& x) {
  if (!dweight.empty())
    device_.compute().run(matmul({.c = dweight, .a = dy, .b = x, .transpose_a = true, .accumulate = true}));
  if (!dbias.empty()) device_.compute().run(column_sum(dbias, dy));
}

void TensorParallel::columns_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                                      const Tensor& x, const Tensor& weight) {
  if (size() == 1) return product_backward(dx, dweight, dbias, dy, x, weight);
  Stream compute = device_.compute();
  const Whole whole = dweight.empty() ? Whole{} : start_gather(x);
  const Allocation partial = device_.allocate("partial sums", Purpose::communication, dx.dtype, {dy.dim[0], dx.dim[1]});
  for (int64_t c = 0; c < chunks_; ++c) {
    compute.run(matmul({.c = chunk(partial, c), .a = chunk(dy, c), .b = weight}));
    scatter_chunk(dx, partial, c);
  }
  if (!dweight.empty()) compute.wait(whole.there_.back());
  weight_gradients(dweight, dbias, dy, whole);
  group_->compute_follows();
}

void TensorParallel::columns_weights(const Tensor& dweight, const Tensor& dy, const Tensor& x) {
  weight_gradients(dweight, {}, dy, gather(x));
}

void TensorParallel::rows_weights(const Tensor& dweight, const Tensor& dy, const Tensor& x) {
  weight_gradients(dweight, {}, gather(dy), x);
}

void TensorParallel::rows_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                                   const Tensor& x, const Tensor& weight) {
  if (size() == 1) return product_backward(dx, dweight, dbias, dy, x, weight);
  Stream compute = device_.compute();
  const Whole whole = start_gather(dy);
  for (int64_t c = 0; c < chunks_; ++c) {
    compute.wait(whole.there_[size_t(c)]);
    compute.run(matmul({.c = chunk(dx, c), .a = chunk(whole, c), .b = weight}));
  }
  weight_gradients(dweight, {}, whole, x);
  if (!dbias.empty()) compute.run(column_sum(dbias, dy)); // this rank's rows: summed over ranks with all vectors
}

} // namespace triax
