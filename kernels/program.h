// The recorded step: what was issued, on which stream, over which bytes. A Program can be checked, packed into an
// arena, printed and compared with what a rank issues later.
#pragma once
#include "kernels/op.h"
#include <unordered_map>

namespace triax {

/// `communication` carries what ranks with other data exchange, `exchange` what ranks with other parts of a layer do,
/// `pipeline` what ranks with other layers do.
enum class StreamId : uint8_t { compute, communication, exchange, pipeline, copy };
constexpr int kStreams = 5;
const char* name_of(StreamId stream);

enum class Purpose : uint8_t {
  weights,
  master,
  gradients,
  optimizer,
  activations,
  logits,
  workspace,
  communication,
  inputs
};
constexpr int kPurposes = 9;
const char* name_of(Purpose purpose);

/// Bytes of the arena under one name: persistent (the whole run) or transient (from an allocation to its release inside
/// a step).
struct Buffer {
  std::string name;
  Purpose purpose = Purpose::activations;
  Space space = Space::device;
  int64_t bytes = 0;   ///< rounded up to kAlignment
  int64_t offset = -1; ///< in the arena of its space, once packed
};
constexpr int64_t kAlignment = 256;
constexpr int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// An operand's place: a buffer of the program (>= 0) or a persistent one (~index), and bytes from its start.
struct Reference {
  int32_t buffer = 0;
  int64_t offset = 0;
};

/// An operation as it stands in many places of a step: without addresses. Repeated layers and micro-batches share it.
struct Signature {
  Op op;
  Description description;
};

struct Instruction {
  enum class What : uint8_t { op, record, wait, allocate, release };
  What what = What::op;
  StreamId stream = StreamId::compute;
  int32_t index = 0;     ///< signature, event or buffer
  int32_t reference = 0; ///< of an operation: its first entry in Program::references
  int32_t scratch = -1;  ///< of an operation: the buffer of its workspace
  int32_t place = -1;    ///< of an operation: where it was issued, in Program::places
};

/// Per stream, how many of its operations come before (vector clock); events and buffers are not counted.
using Clock = std::array<int32_t, kStreams>;

class Program {
public:
  std::string kind;          ///< "train", "evaluate", ...
  bool ranks_differ = false; ///< in what they issue; then it has no collectives
  std::vector<Signature> signatures;
  std::vector<Instruction> instructions;
  std::vector<Reference> references;
  std::vector<Buffer> buffers;
  std::vector<std::string> places; ///< "model/decoder.cpp:97"; no part of the plan
  int32_t events = 0;
  std::vector<uint64_t> hashes; ///< one an instruction, once packed; what a rank is held to

  double flops() const;
  /// The operand's tensor with its arena offset as address (buffer and persistent offsets must be set).
  Tensor operand(const Instruction& at, int i, const std::vector<Buffer>& persistent) const;
  const Buffer& buffer(int32_t index, const std::vector<Buffer>& persistent) const;
  std::string describe(size_t instruction) const; ///< "#57 compute rms_norm(...) at model/decoder.cpp:97"
  /// The clock of each instruction: the first clock[s] operations of stream s happen before it, or end in itself.
  std::vector<Clock> clocks() const;
};

/// What is wrong with a recorded step, in sentences that name operations and buffers: operands outside their buffer,
/// used before they are written or after their release; two operations that touch the same bytes, one writing,
/// unordered by events; and, once packed, buffers that share bytes without an order between their uses. Empty where all
/// is well.
std::vector<std::string> faults(const Program& program, const std::vector<Buffer>& persistent);

/// All kinds of step over one persistent region: what a run's arena is, to the byte.
struct Plan {
  Target target;
  std::vector<Buffer> persistent;
  std::vector<Program> programs;
  std::array<int64_t, kSpaces> bytes{}; ///< size of the arena of each space

  const Program* find(const std::string& kind) const;
  uint64_t hash() const; ///< of everything that ranks are held to alike
  /// The moment of the most live bytes over all programs: by purpose, and the sum, which no packing can beat.
  struct Peak {
    std::string program, instruction;
    std::array<int64_t, kPurposes> bytes{};
    int64_t total = 0;
  };
  Peak peak(Space space) const;
};

/// Places every buffer (two may share bytes only if all uses of one happen before all uses of the other), sets offsets,
/// sizes and hashes, and throws what `faults` finds.
Plan pack(const Target& target, std::vector<Buffer> persistent, std::vector<Program> programs);

/// One instruction's part of the plan, from what is issued: kind, attributes, shapes, arena offsets, stream, event.
uint64_t hash_of(const Op& op, StreamId stream, const std::array<uint64_t, kSpaces>& arena_base);
uint64_t hash_of(Instruction::What what, StreamId stream, int64_t index);

} // namespace triax
