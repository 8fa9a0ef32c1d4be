#include "kernels/emulated/fiber.h"
#include "kernels/check.h"
#include <sys/mman.h>
#include <unistd.h>
#include <vector>
#if defined(TRIAX_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace triax::emulation {
namespace {

constexpr size_t kStack = 256 * 1024;
std::vector<char*> free_stacks;

char* map_stack() {
  static const size_t page = size_t(sysconf(_SC_PAGESIZE));
  void* at = mmap(nullptr, kStack + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  DEMAND(at != MAP_FAILED, "emulation: no memory for another thread's stack");
  mprotect(at, page, PROT_NONE); // an overflow is a fault
  return static_cast<char*>(at) + page;
}

} // namespace

void take_stack(Fiber& fiber) {
  if (free_stacks.empty()) free_stacks.push_back(map_stack());
  fiber.stack = free_stacks.back();
  fiber.size = kStack;
  free_stacks.pop_back();
}

void return_stack(Fiber& fiber) {
  free_stacks.push_back(fiber.stack);
  fiber.stack = nullptr;
}

void clean_stack([[maybe_unused]] const Fiber& fiber) {
#if defined(TRIAX_ADDRESS_SANITIZER)
  __asan_unpoison_memory_region(fiber.stack, fiber.size);
#endif
}

#if defined(__x86_64__)

/// Saves the registers that a call preserves, and the stack pointer, in the one; takes them from the other.
extern "C" void triax_switch_stacks(void** save, void* load);
asm(R"(
.text
.globl triax_switch_stacks
.type triax_switch_stacks, @function
triax_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size triax_switch_stacks, . - triax_switch_stacks
)");

void prepare(Fiber& fiber, unsigned number, void (*entry)()) {
  char* top = fiber.stack + fiber.size - number % 61 * 192 - 64;
  void** words = reinterpret_cast<void**>(top);
  *--words = nullptr; // a return address that is never used, for the alignment
  *--words = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--words = nullptr;
  fiber.stack_pointer = words;
}

#else

static void triax_switch_stacks(void** save, void* load) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, static_cast<ucontext_t*>(load));
}

void prepare(Fiber& fiber, unsigned, void (*entry)()) {
  auto* context = reinterpret_cast<ucontext_t*>(fiber.stack); // at the far end of what it describes
  getcontext(context);
  context->uc_stack.ss_sp = fiber.stack + sizeof(ucontext_t);
  context->uc_stack.ss_size = fiber.size - sizeof(ucontext_t);
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  fiber.stack_pointer = context;
}

#endif

void entered([[maybe_unused]] Fiber& launcher) {
#if defined(TRIAX_ADDRESS_SANITIZER)
  const void* stack = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &size);
  if (!launcher.stack) {
    launcher.stack = static_cast<char*>(const_cast<void*>(stack));
    launcher.size = size;
  }
#endif
}

void switch_fibers(Fiber& from, const Fiber& to, [[maybe_unused]] bool from_ends) {
#if defined(TRIAX_ADDRESS_SANITIZER)
  __sanitizer_start_switch_fiber(from_ends ? nullptr : &from.fake_stack, to.stack, to.size);
#endif
  triax_switch_stacks(&from.stack_pointer, to.stack_pointer);
#if defined(TRIAX_ADDRESS_SANITIZER)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

} // namespace triax::emulation
