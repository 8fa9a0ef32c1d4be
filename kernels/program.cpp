#include "kernels/program.h"
#include <algorithm>

namespace triax {

const char* name_of(StreamId stream) {
  constexpr const char* kNames[] = {"compute", "communication", "exchange", "pipeline", "copy"};
  return kNames[int(stream)];
}

const char* name_of(Purpose purpose) {
  constexpr const char* kNames[] = {"weights", "master weights", "gradients",     "optimizer", "activations",
                                    "logits",  "workspace",      "communication", "inputs"};
  return kNames[int(purpose)];
}

double Program::flops() const {
  double sum = 0;
  for (const Instruction& i : instructions)
    if (i.what == Instruction::What::op) sum += signatures[i.index].description.flops;
  return sum;
}

const Buffer& Program::buffer(int32_t index, const std::vector<Buffer>& persistent) const {
  return index >= 0 ? buffers[index] : persistent[~index];
}

Tensor Program::operand(const Instruction& at, int i, const std::vector<Buffer>& persistent) const {
  Tensor t = signatures[at.index].op[i];
  if (t.empty()) return t;
  const Reference& r = references[at.reference + i];
  t.address = uint64_t(buffer(r.buffer, persistent).offset + r.offset);
  return t;
}

std::string Program::describe(size_t instruction) const {
  const Instruction& at = instructions[instruction];
  const std::string head = concat("#", instruction, " ", name_of(at.stream), " ");
  switch (at.what) {
  case Instruction::What::op:
    return concat(head, signatures[at.index].op.describe(), at.place >= 0 ? " at " + places[size_t(at.place)] : "");
  case Instruction::What::record:
    return concat(head, "record event ", at.index);
  case Instruction::What::wait:
    return concat(head, "wait for event ", at.index);
  case Instruction::What::allocate:
    return concat("#", instruction, " allocate ", buffers[at.index].name, " of ", buffers[at.index].bytes, " bytes");
  default:
    return concat("#", instruction, " release ", buffers[at.index].name);
  }
}

std::vector<Clock> Program::clocks() const {
  std::vector<Clock> result(instructions.size()), event(size_t(events), Clock{});
  std::array<Clock, kStreams> now{};
  for (size_t n = 0; n < instructions.size(); ++n) {
    const Instruction& i = instructions[n];
    Clock& clock = now[int(i.stream)];
    if (i.what == Instruction::What::op) ++clock[int(i.stream)];
    if (i.what == Instruction::What::record) event[i.index] = clock;
    if (i.what == Instruction::What::wait)
      for (int s = 0; s < kStreams; ++s) clock[s] = std::max(clock[s], event[i.index][s]);
    result[n] = clock;
  }
  return result;
}

const Program* Plan::find(const std::string& kind) const {
  for (const Program& p : programs)
    if (p.kind == kind) return &p;
  return nullptr;
}

namespace {
uint64_t mix(uint64_t h, uint64_t word) {
  h = (h ^ word) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 29);
}
uint64_t mix(uint64_t h, const char* text) {
  for (; *text; ++text) h = mix(h, uint64_t(uint8_t(*text)));
  return h;
}
} // namespace

uint64_t hash_of(const Op& op, StreamId stream, const std::array<uint64_t, kSpaces>& arena_base) {
  uint64_t h = mix(mix(1, op.kind->name), uint64_t(stream));
  std::array<uint64_t, kAttributeBytes / 8> words;
  std::memcpy(words.data(), op.attributes.data(), kAttributeBytes);
  for (uint64_t w : words) h = mix(h, w);
  for (int i = 0; i < op.operand_count; ++i) {
    if (!op.has(i)) {
      h = mix(h, uint64_t(0));
      continue;
    }
    const Tensor& t = op[i];
    h = mix(h, uint64_t(op.operands[i].access) << 24 | uint64_t(t.dtype) << 16 | uint64_t(t.space) << 8 |
                   uint64_t(t.rank));
    h = mix(h, t.address - arena_base[int(t.space)]);
    for (int d = 0; d < t.rank; ++d) h = mix(mix(h, uint64_t(t.dim[d])), uint64_t(t.stride[d]));
  }
  return h;
}

uint64_t hash_of(Instruction::What what, StreamId stream, int64_t index) {
  return mix(mix(mix(2, uint64_t(what)), uint64_t(stream)), uint64_t(index));
}

uint64_t Plan::hash() const {
  uint64_t h = mix(3, target.name.c_str());
  for (const Buffer& b : persistent) h = mix(mix(h, b.name.c_str()), uint64_t(b.bytes));
  for (const Program& p : programs) {
    if (p.ranks_differ) continue;
    h = mix(h, p.kind.c_str());
    for (uint64_t instruction : p.hashes) h = mix(h, instruction);
  }
  return h;
}

} // namespace triax
