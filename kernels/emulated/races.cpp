// The race detector. Kernels are compiled with -fsanitize=thread but not linked with its library; what it would call is
// in hooks.cpp, so that every access of a kernel is seen, with its line. For each byte the last write and the last
// reads by two threads are kept. Barriers order the threads of a block and __syncwarp the lanes of its mask; nothing
// orders blocks of a launch, which may share no byte that one of them writes, but by atomics.
#include "kernels/check.h"
#include "kernels/emulated/block.h"
#include <link.h>
#include <memory>
#include <unordered_map>

namespace triax::emulation {
namespace {

struct Seen {
  uint64_t caller : 48, thread : 10, atomic : 1;
  uint32_t block;    ///< its number in Counts; 0: none
  uint16_t barriers; ///< of the block before it
  uint16_t clock;    ///< of its lane
};
static_assert(sizeof(Seen) == 16);

struct Byte {
  Seen write, read, other_read;
};
constexpr uintptr_t kPage = 4096;
using Page = std::array<Byte, kPage>;

/// Records by page of memory. What former operations left in them is too old to count, so pages are used again as they
/// are.
class Records {
public:
  Byte& of(uintptr_t at) {
    const uintptr_t page = at / kPage;
    Known& known = recent_[page % recent_.size()];
    if (!known.records || known.page != page) known = {page, find(page)};
    return (*known.records)[at % kPage];
  }
  void begin_operation() {
    operation_ = counts.first_of_operation;
    recent_.fill({});
    for (auto& [at, page] : pages_) free_.push_back(std::move(page));
    pages_.clear();
  }
  uint32_t operation() const { return operation_; }

private:
  Page* find(uintptr_t at) {
    auto& page = pages_[at];
    if (!page && free_.empty()) page = std::make_unique<Page>();
    if (!page) {
      page = std::move(free_.back());
      free_.pop_back();
    }
    return page.get();
  }
  struct Known {
    uintptr_t page = 0;
    Page* records = nullptr;
  };
  std::array<Known, 256> recent_{};
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  std::vector<std::unique_ptr<Page>> free_;
  uint32_t operation_ = 0;
};
Records records;

struct Range {
  uintptr_t begin = 0, end = 0;
  bool holds(uintptr_t at, size_t bytes) const { return at >= begin && at + bytes <= end; }
};

/// Parts of this program.
struct Parts {
  Range shared;                 ///< static shared memory: what is thread_local, of this thread
  std::vector<Range> constants; ///< what nobody can write: tables
};
const Parts& parts() {
  static thread_local const Parts known = [] {
    Parts found;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* to) {
          Parts& all = *static_cast<Parts*>(to);
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& part = info->dlpi_phdr[i];
            const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
            const uintptr_t data = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
            if (part.p_type == PT_TLS && data) all.shared = {data, data + part.p_memsz};
            if ((part.p_type == PT_LOAD && !(part.p_flags & PF_W)) || part.p_type == PT_GNU_RELRO)
              all.constants.push_back({begin, begin + part.p_memsz});
          }
          return 1; // the first is the program itself
        },
        &found);
    return found;
  }();
  return known;
}

bool in_constants(uintptr_t at, size_t bytes) {
  for (const Range& range : parts().constants)
    if (range.holds(at, bytes)) return true;
  return false;
}

inline bool ordered(const Seen& before) {
  const Thread& own = *block.current;
  return before.thread == own.number || before.barriers != block.barriers ||
         (before.thread / kWarp == own.number / kWarp && own.clocks[before.thread % kWarp] >= before.clock);
}
inline bool conflict(const Seen& before, bool shared, bool atomic) {
  if (before.block < counts.first_of_launch || (before.atomic && atomic)) return false;
  if (before.block == counts.blocks) return !ordered(before);
  return !shared;
}
/// Does it say nothing more that a later access must be held against?
bool spent(const Seen& before, bool shared) {
  return before.block == counts.blocks ? ordered(before) : shared || before.block < counts.first_of_launch;
}

[[noreturn]] void stop_at(const std::string& what, const void* caller) {
  stop(concat(what, " at ", source_of(caller)), {});
}

[[noreturn]] void stop_at_race(const Seen& before, const char* did, bool shared, Touch how, const void* caller) {
  const unsigned n = before.thread;
  const bool same = before.block == counts.blocks;
  stop_at(concat(shared ? "race on shared memory: " : "race on global memory: ",
                 same ? concat("thread ", n, " of the block ") : concat("thread ", n, " of another block "), did,
                 " at ", source_of(reinterpret_cast<const void*>(uintptr_t(before.caller))), "\n  and this thread ",
                 how == Touch::read ? "reads" : "writes"),
          caller);
}

/// Where the bytes are; ends the launch where nobody may touch them so. `skip` where there is nothing to hold them to.
enum class Memory : uint8_t { skip, shared, global };
Memory memory_of(uintptr_t at, size_t bytes, Touch how, const void* caller) {
  const Thread& own = *block.current;
  const auto range = [](const void* begin, size_t size) {
    return Range{reinterpret_cast<uintptr_t>(begin), reinterpret_cast<uintptr_t>(begin) + size};
  };
  if (range(own.fiber.stack, own.fiber.size).holds(at, bytes)) return Memory::skip;
  if (range(&registers, sizeof(registers)).holds(at, bytes)) return Memory::skip;
  if (parts().shared.holds(at, bytes)) return Memory::shared;
  if (range(block.shared, block.shared_bytes).holds(at, bytes)) return Memory::shared;
  if (range(block.shared, block.shared_capacity).holds(at, bytes))
    stop_at(concat("access past the end of the ", block.shared_bytes, " bytes of dynamic shared memory"), caller);
  if (how == Touch::read && range(block.kernel.call, block.kernel.size).holds(at, bytes)) return Memory::skip;
  if (how == Touch::read && in_constants(at, bytes)) return Memory::skip;
  if (!allowed(at, bytes, how)) stop_at(describe_undeclared(at, bytes, how), caller);
  return Memory::global;
}

} // namespace

void touch_aligned(const void* at, size_t bytes, Touch how, const void* caller) {
  if (block.current && block.kernel.races && reinterpret_cast<uintptr_t>(at) % bytes)
    stop_at(concat(how == Touch::read ? "read of " : "write to ", "a misaligned address: ", bytes,
                   " bytes are not aligned to as many"),
            caller);
  touch(at, bytes, how, caller);
}

void touch(const void* address, size_t bytes, Touch how, const void* caller) {
  if (!block.current || !block.kernel.races || bytes == 0) return;
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  const Memory memory = memory_of(at, bytes, how, caller);
  if (memory == Memory::skip) return;
  if (memory == Memory::global) {
    if (how != Touch::write) moved_bytes.read += int64_t(bytes);
    if (how != Touch::read) moved_bytes.written += int64_t(bytes);
  }
  const bool shared = memory == Memory::shared, atomic = how == Touch::atomic;
  const Thread& own = *block.current;
  const Seen now{reinterpret_cast<uintptr_t>(caller), own.number, atomic, counts.blocks, block.barriers,
                 own.clocks[own.number % kWarp]};
  if (records.operation() != counts.first_of_operation) records.begin_operation();
  for (size_t i = 0; i < bytes; ++i) {
    Byte& byte = records.of(at + i);
    if (conflict(byte.write, shared, atomic)) stop_at_race(byte.write, "wrote", shared, how, caller);
    if (how == Touch::read || atomic) {
      if (shared && byte.write.block != counts.blocks)
        stop_at("read of shared memory that nobody in the block has written", caller);
      if (!shared && byte.write.block < counts.first_of_operation && written_first(at + i))
        stop_at("read of what the operation only writes, before it is written", caller);
    }
    if (how != Touch::read) {
      for (const Seen* read : {&byte.read, &byte.other_read})
        if (conflict(*read, shared, atomic)) stop_at_race(*read, "read", shared, how, caller);
      byte.write = now;
    }
    if (how == Touch::read || atomic)
      (byte.read.thread == own.number || spent(byte.read, shared) ? byte.read : byte.other_read) = now;
    if (how == Touch::begin_copy) byte.write.block = 0;
  }
}

} // namespace triax::emulation
