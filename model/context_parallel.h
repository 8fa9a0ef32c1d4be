// Sequences whose positions are parted over a group of ranks, which meet in attention alone: around a ring (Liu et al.
// 2023, arXiv 2310.01889) or by giving each rank some heads of all positions (DeepSpeed Ulysses, Jacobs et al. 2023,
// arXiv 2309.14509). A group of one issues the plain operations.
#pragma once
#include "comm/collective.h"
#include "kernels/attention.h"
#include <span>

namespace triax {

/// `ring`: keys and values go around, and each rank has two chunks of a sequence, one from its front and one from its
/// end, so that a causal mask leaves all as much to do. `all_to_all`: a rank has one chunk; heads must part evenly.
enum class ContextExchange { ring, all_to_all };
std::span<const char* const> names(ContextExchange);

/// The positions, of a sequence of `length`, of the rows that rank `rank` of `ranks` has, in their order.
std::vector<int32_t> context_positions(ContextExchange exchange, int64_t length, int rank, int ranks);

class ContextParallel {
public:
  /// Alone.
  explicit ContextParallel(Device& device) : device_(device) {}
  /// `group` is the ring of the context axis; `state` holds the StepState, which knows this rank's place in it.
  ContextParallel(Device& device, Collectives& group, ContextExchange exchange, const Tensor& state)
      : device_(device), group_(&group), exchange_(exchange), state_(state) {}

  int size() const { return group_ ? group_->size() : 1; }
  /// Of this rank's rows of a sequence, of which there are `rows`.
  std::vector<int32_t> positions(int64_t rows) const {
    return context_positions(exchange_, rows * size(), group_ ? group_->group().index() : 0, size());
  }

  /// What the backward pass needs beside the rows' own queries, keys, values and output.
  struct Kept {
    Allocation qkv, out; ///< of all positions, where heads are parted; empty otherwise
    Allocation lse;
  };
  /// N = B * T of `shape`; of this rank's rows out [N, H * D] from qkv [N, (H + 2G) * D]. `document_start` is i32[N],
  /// or with all_to_all i32[N * ranks], of all positions.
  Kept forward(const AttentionShape& shape, const Tensor& out, const Tensor& qkv, const Tensor& document_start);
  /// dqkv from dout; frees what was kept.
  void backward(const AttentionShape& shape, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                const Tensor& qkv, const Tensor& document_start, Kept kept);

private:
  AttentionRing ring(int64_t step) const { return {size(), step, state_}; }
  Allocation allocate(const char* name, Purpose purpose, Dtype dtype, std::initializer_list<int64_t> shape) {
    return device_.allocate(name, purpose, dtype, shape);
  }
  Allocation statistics(const AttentionShape& shape);
  Kept ring_forward(const AttentionShape& shape, const Tensor& out, const Tensor& qkv, const Tensor& document_start);
  void ring_backward(const AttentionShape& shape, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                     const Tensor& qkv, const Tensor& document_start, const Kept& kept);
  AttentionShape all_positions(const AttentionShape& shape) const;
  Kept heads_forward(const AttentionShape& shape, const Tensor& out, const Tensor& qkv, const Tensor& document_start);
  void heads_backward(const AttentionShape& shape, const Tensor& dqkv, const Tensor& dout, const Tensor& document_start,
                      const Kept& kept);
  Allocation to_heads(const AttentionShape& shape, const Tensor& rows, std::initializer_list<int64_t> heads);
  void to_rows(const AttentionShape& shape, const Tensor& rows, const Tensor& all,
               std::initializer_list<int64_t> heads);

  Device& device_;
  Collectives* group_ = nullptr;
  ContextExchange exchange_ = ContextExchange::ring;
  Tensor state_;
};

} // namespace triax
