#include "model/context_parallel.h"
#include "kernels/rearrange.h"
#include <numeric>
#include <utility>

namespace triax {
namespace {

Tensor queries_of(const AttentionShape& s, const Tensor& qkv) { return qkv.slice(1, 0, s.heads * s.head_width); }
Tensor keys_of(const AttentionShape& s, const Tensor& qkv) {
  return qkv.slice(1, s.heads * s.head_width, 2 * s.kv_heads * s.head_width);
}

/// Columns [N, C] as the ranks have them: [N, R, C / R].
Tensor by_ranks(const Tensor& columns, int64_t ranks) {
  Tensor t = columns;
  const int64_t C = columns.dim[1] / ranks;
  t.rank = 3;
  t.dim = {columns.dim[0], ranks, C, 1};
  t.stride = {columns.stride[0], C, 1, 0};
  return t;
}

/// The first two dimensions change places.
Tensor swapped(Tensor t) {
  std::swap(t.dim[0], t.dim[1]);
  std::swap(t.stride[0], t.stride[1]);
  return t;
}

} // namespace

std::span<const char* const> names(ContextExchange) {
  static constexpr const char* kNames[] = {"ring", "all_to_all"};
  return kNames;
}

std::vector<int32_t> context_positions(ContextExchange exchange, int64_t length, int rank, int ranks) {
  std::vector<int32_t> positions(size_t(length / ranks));
  const int32_t chunks = exchange == ContextExchange::ring && ranks > 1 ? 2 : 1;
  const int32_t rows = int32_t(positions.size()) / chunks;
  ENSURE(int64_t(rows) * chunks * ranks == length, "a sequence of ", length, " over ", ranks, " ranks");
  std::iota(positions.begin(), positions.begin() + rows, rank * rows);
  if (chunks == 2) std::iota(positions.begin() + rows, positions.end(), (2 * ranks - 1 - rank) * rows);
  return positions;
}

Allocation ContextParallel::statistics(const AttentionShape& s) {
  return allocate("attention lse", Purpose::activations, Dtype::f32, {s.batch, s.heads, s.sequence});
}

ContextParallel::Kept ContextParallel::forward(const AttentionShape& shape, const Tensor& out, const Tensor& qkv,
                                               const Tensor& document_start) {
  if (size() > 1)
    return exchange_ == ContextExchange::ring ? ring_forward(shape, out, qkv, document_start)
                                              : heads_forward(shape, out, qkv, document_start);
  Kept kept;
  kept.lse = statistics(shape);
  device_.compute().run(attention_forward({shape, out, kept.lse, qkv, document_start}));
  return kept;
}

void ContextParallel::backward(const AttentionShape& shape, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                               const Tensor& qkv, const Tensor& document_start, Kept kept) {
  if (size() == 1)
    device_.compute().run(attention_backward({shape, dqkv, dout, out, kept.lse, qkv, document_start}));
  else if (exchange_ == ContextExchange::ring)
    ring_backward(shape, dqkv, dout, out, qkv, document_start, kept);
  else
    heads_backward(shape, dqkv, dout, document_start, kept);
}

// ---- around the ring ----

namespace {

/// Keys and values, each step those of the rank before: one step's are computed with while the next one's travel.
class Travelling {
public:
  Travelling(Device& device, Collectives& ring, const char* name, Dtype dtype, int64_t rows, int64_t columns)
      : device_(device), ring_(ring), name_(name), here_(buffer(dtype, rows, columns)) {}
  /// What is here, for the compute stream.
  const Tensor& here() {
    if (const Event there = std::exchange(there_, {}); there.id >= 0) device_.compute().wait(there);
    return here_;
  }
  /// From now on what was here is on its way, and `here` is what comes; the former is free when the compute stream has
  /// used it, so this keeps it until the next call.
  void go_on() {
    before_ = {};
    before_ = std::exchange(here_, buffer(here_->dtype, here_->dim[0], here_->dim[1]));
    ring_.follow_compute();
    ring_.shift(here_, before_);
    there_ = ring_.stream().record();
  }

private:
  Allocation buffer(Dtype dtype, int64_t rows, int64_t columns) {
    return device_.allocate(name_, Purpose::communication, dtype, {rows, columns});
  }
  Device& device_;
  Collectives& ring_;
  const char* name_;
  Allocation here_, before_;
  Event there_;
};

} // namespace

ContextParallel::Kept ContextParallel::ring_forward(const AttentionShape& s, const Tensor& out, const Tensor& qkv,
                                                    const Tensor& document_start) {
  const int64_t N = qkv.dim[0], columns = s.heads * s.head_width, ranks = size();
  Stream compute = device_.compute();
  Travelling kv(device_, *group_, "travelling keys", qkv.dtype, N, 2 * s.kv_heads * s.head_width);
  compute.run(rearrange(kv.here(), keys_of(s, qkv)));

  // Sums in f32; the last one is rounded to `out`, as is the only one of two ranks.
  const auto rows = [&](const char* name, Dtype dtype) {
    return allocate(name, Purpose::activations, dtype, {N, columns});
  };
  const bool exact = out.dtype == Dtype::f32;
  Allocation first, sum, part = rows("attention of a rank's keys", out.dtype), part_lse = statistics(s);
  if (!exact) first = rows("attention of own keys", out.dtype);
  if (!exact && ranks > 2) sum = rows("attention so far", Dtype::f32);
  Allocation lse = statistics(s), other_lse = statistics(s);
  AttentionPart so_far{exact ? out : *first, lse};
  kv.go_on();
  compute.run(
      attention_forward({s, ring(0), so_far.out, so_far.lse, queries_of(s, qkv), keys_of(s, qkv), document_start}));
  for (int64_t step = 1; step < ranks; ++step) {
    const Tensor here = kv.here();
    const bool last = step + 1 == ranks;
    if (!last) kv.go_on();
    compute.run(attention_forward({s, ring(step), part, part_lse, queries_of(s, qkv), here, document_start}));
    const AttentionPart joined{last || exact ? out : *sum, other_lse};
    compute.run(attention_join(joined, so_far, {part, part_lse}));
    std::swap(lse, other_lse);
    so_far = {joined.out, lse};
  }
  Kept kept;
  kept.lse = std::move(lse);
  return kept;
}

void ContextParallel::ring_backward(const AttentionShape& s, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                                    const Tensor& qkv, const Tensor& document_start, const Kept& kept) {
  const int64_t N = qkv.dim[0], queries = s.heads * s.head_width, keys = 2 * s.kv_heads * s.head_width;
  Stream compute = device_.compute();
  Travelling kv(device_, *group_, "travelling keys", qkv.dtype, N, keys),
      dkv(device_, *group_, "travelling gradients of keys", Dtype::f32, N, keys);
  compute.run(rearrange(kv.here(), keys_of(s, qkv)));
  const Allocation dq = allocate("d queries so far", Purpose::activations, Dtype::f32, {N, queries});
  const Allocation part = allocate("d queries of a rank's keys", Purpose::activations, qkv.dtype, {N, queries}),
                   part_kv = allocate("d keys of own queries", Purpose::activations, qkv.dtype, {N, keys});
  for (int64_t step = 0; step < size(); ++step) {
    const Tensor here = kv.here();
    if (step + 1 < size()) kv.go_on();
    compute.run(attention_backward(
        {s, ring(step), part, part_kv, dout, out, kept.lse, queries_of(s, qkv), here, document_start}));
    compute.run(rearrange(dq, part, step > 0));
    compute.run(rearrange(dkv.here(), part_kv, step > 0)); // their sum travels with the keys,
    dkv.go_on();                                           // and home at last
  }
  compute.run(rearrange(queries_of(s, dqkv), dq));
  compute.run(rearrange(keys_of(s, dqkv), dkv.here()));
}

// ---- by heads ----

AttentionShape ContextParallel::all_positions(const AttentionShape& s) const {
  AttentionShape all = s;
  all.sequence = s.sequence * size();
  all.heads = s.heads / size();
  all.kv_heads = s.kv_heads / size();
  return all;
}

/// rows [N, sum of heads * D] of all heads, by kinds of head, become [N * ranks, sum of heads / ranks * D] of all
/// positions.
Allocation ContextParallel::to_heads(const AttentionShape& s, const Tensor& rows,
                                     std::initializer_list<int64_t> heads) {
  const int64_t N = rows.dim[0], R = size(), width = rows.dim[1] / R;
  Stream compute = device_.compute();
  Allocation sent = allocate("pieces of heads", Purpose::communication, rows.dtype, {R, N, width}),
             all = allocate("all positions", Purpose::activations, rows.dtype, {N * R, width});
  int64_t from = 0, to = 0;
  for (const int64_t count : heads) {
    const int64_t columns = count * s.head_width;
    compute.run(rearrange(swapped(sent->slice(2, to, columns / R)), by_ranks(rows.slice(1, from, columns), R)));
    from += columns;
    to += columns / R;
  }
  if (s.batch == 1) {
    group_->in_line([&] { group_->all_to_all(all->view({R, N, width}), sent); });
    return all;
  }
  const Allocation received =
      allocate("received pieces", Purpose::communication, rows.dtype, {R, s.batch, s.sequence * width});
  group_->in_line([&] { group_->all_to_all(received->view({R, N, width}), sent); });
  compute.run(rearrange(swapped(all->view({s.batch, R, s.sequence * width})), received));
  return all;
}

/// The inverse of `to_heads`.
void ContextParallel::to_rows(const AttentionShape& s, const Tensor& rows, const Tensor& all,
                              std::initializer_list<int64_t> heads) {
  const int64_t N = rows.dim[0], R = size(), width = rows.dim[1] / R;
  Stream compute = device_.compute();
  Allocation sent;
  if (s.batch > 1) {
    sent = allocate("pieces of positions", Purpose::communication, rows.dtype, {R, s.batch, s.sequence * width});
    compute.run(rearrange(sent, swapped(all.view({s.batch, R, s.sequence * width}))));
  }
  const Tensor pieces = s.batch > 1 ? *sent : all;
  const Allocation received = allocate("received pieces", Purpose::communication, rows.dtype, {R, N, width});
  group_->in_line([&] { group_->all_to_all(received, pieces.view({R, N, width})); });
  int64_t from = 0, to = 0;
  for (const int64_t count : heads) {
    const int64_t columns = count * s.head_width;
    compute.run(rearrange(by_ranks(rows.slice(1, to, columns), R), swapped(received->slice(2, from, columns / R))));
    to += columns;
    from += columns / R;
  }
}

ContextParallel::Kept ContextParallel::heads_forward(const AttentionShape& s, const Tensor& out, const Tensor& qkv,
                                                     const Tensor& document_start) {
  const AttentionShape all = all_positions(s);
  Kept kept;
  kept.qkv = to_heads(s, qkv, {s.heads, s.kv_heads, s.kv_heads});
  kept.out = allocate("attention of all positions", Purpose::activations, qkv.dtype,
                      {all.batch * all.sequence, all.heads * all.head_width});
  kept.lse = statistics(all);
  device_.compute().run(attention_forward({all, kept.out, kept.lse, kept.qkv, document_start}));
  to_rows(s, out, kept.out, {s.heads});
  return kept;
}

void ContextParallel::heads_backward(const AttentionShape& s, const Tensor& dqkv, const Tensor& dout,
                                     const Tensor& document_start, const Kept& kept) {
  const Allocation dout_of_all = to_heads(s, dout, {s.heads});
  const Allocation dqkv_of_all =
      allocate("d qkv of all positions", Purpose::activations, dqkv.dtype, {kept.qkv->dim[0], kept.qkv->dim[1]});
  device_.compute().run(
      attention_backward({all_positions(s), dqkv_of_all, dout_of_all, kept.out, kept.lse, kept.qkv, document_start}));
  to_rows(s, dqkv, dqkv_of_all, {s.heads, s.kv_heads, s.kv_heads});
}

} // namespace triax
