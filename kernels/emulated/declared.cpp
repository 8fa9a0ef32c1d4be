// What the operation in progress declares that it reads and writes.
#include "kernels/check.h"
#include "kernels/emulated/block.h"
#include <algorithm>

namespace triax::emulation {

Moved moved_bytes;

namespace {

/// A tensor as runs of bytes without a gap: `count[d]` steps of `step[d]` bytes, the largest first.
struct Box {
  uintptr_t begin = 0;
  std::array<int64_t, kMaxDims> count{}, step{};
  int dims = 0;
  int64_t run = 0;
  bool reads = false, writes = false;
  std::string name;

  bool holds(uintptr_t at, size_t bytes) const {
    if (at < begin) return false;
    int64_t offset = int64_t(at - begin);
    for (int d = 0; d < dims; ++d) {
      if (offset / step[size_t(d)] >= count[size_t(d)]) return false;
      offset %= step[size_t(d)];
    }
    return offset + int64_t(bytes) <= run;
  }
};

std::vector<Box> boxes;
bool active = false;

Box box_of(const Tensor& t) {
  Box box;
  box.begin = t.address;
  box.run = t.size() ? bytes_of(t.dtype) : 0;
  std::vector<std::pair<int64_t, int64_t>> dims; // (step, count)
  for (int d = 0; d < t.rank; ++d)
    if (t.dim[size_t(d)] != 1) dims.emplace_back(t.stride[size_t(d)] * bytes_of(t.dtype), t.dim[size_t(d)]);
  std::sort(dims.rbegin(), dims.rend());
  for (; !dims.empty() && dims.back().first == box.run; dims.pop_back()) box.run *= dims.back().second;
  for (const auto& [step, count] : dims) {
    box.step[size_t(box.dims)] = step;
    box.count[size_t(box.dims++)] = count;
  }
  return box;
}

} // namespace

Declared::Declared(const Op& op, const Tensor& scratch) {
  ENSURE(boxes.empty(), "emulation: an operation inside of an operation");
  constexpr const char* kAccess[] = {"read ", "write ", "update "};
  for (int i = 0; i < op.operand_count; ++i) {
    if (!op.has(i)) continue;
    Box box = box_of(op[i]);
    const Access access = op.operands[size_t(i)].access;
    box.reads = access != Access::write;
    box.writes = access != Access::read;
    box.name = concat("operand ", i, " of ", op.kind->name, ", ", kAccess[int(access)], op[i].describe());
    boxes.push_back(std::move(box));
  }
  if (!scratch.empty()) {
    boxes.push_back(box_of(scratch));
    boxes.back().writes = true;
    boxes.back().name = concat("the scratch of ", op.kind->name);
  }
  active = true;
  moved_bytes = {};
  counts.first_of_operation = counts.blocks + 1;
}

Declared::~Declared() {
  boxes.clear();
  active = false;
}

bool is_declared() { return active; }

Moved moved() { return moved_bytes; }

bool allowed(uintptr_t at, size_t bytes, Touch how) {
  if (!active) return true;
  bool readable = how != Touch::read && how != Touch::atomic, writable = how == Touch::read;
  for (const Box& box : boxes) {
    if (!box.holds(at, bytes)) continue;
    readable = true; // what is written may be read again: see written_first
    writable = writable || box.writes;
    if (readable && writable) return true;
  }
  return false;
}

std::string describe_undeclared(uintptr_t at, size_t bytes, Touch how) {
  const char* verb = how == Touch::read ? "read of " : "write to ";
  for (const Box& box : boxes)
    if (box.holds(at, bytes)) return verb + box.name;
  for (const Box& box : boxes)
    if (box.holds(at, 1)) return concat(verb, bytes, " bytes that begin in ", box.name, ", and end outside of it");
  return concat(verb, bytes, " bytes outside of all operands");
}

bool written_first(uintptr_t at) {
  bool only_written = false;
  for (const Box& box : boxes) {
    if (!box.holds(at, 1)) continue;
    if (box.reads) return false;
    only_written = true;
  }
  return only_written;
}

} // namespace triax::emulation
