// What a unit that is compiled with -fsanitize=thread calls for each of its accesses. Outside of kernels nothing is
// done.
#include "kernels/emulated/runtime.h"

using triax::emulation::Touch;
using triax::emulation::touch;
using triax::emulation::touch_aligned;

#define CALLER __builtin_return_address(0)
#define EXPORTED __attribute__((visibility("default")))

extern "C" {

EXPORTED void __tsan_init() {}
EXPORTED void __tsan_func_entry(void*) {}
EXPORTED void __tsan_func_exit() {}
EXPORTED void __tsan_vptr_update(void**, void*) {}
EXPORTED void __tsan_vptr_read(void**) {}

#define HOOK(name, bytes, touch, how)                                                                                  \
  EXPORTED void __tsan_##name##bytes(void* at) { touch(at, bytes, how, CALLER); }
#define HOOKS(bytes)                                                                                                   \
  HOOK(read, bytes, touch_aligned, Touch::read)                                                                        \
  HOOK(write, bytes, touch_aligned, Touch::write)                                                                      \
  HOOK(unaligned_read, bytes, touch, Touch::read)                                                                      \
  HOOK(unaligned_write, bytes, touch, Touch::write)                                                                    \
  HOOK(volatile_read, bytes, touch_aligned, Touch::read)                                                               \
  HOOK(volatile_write, bytes, touch_aligned, Touch::write)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

EXPORTED void __tsan_read_range(void* at, size_t bytes) { touch(at, bytes, Touch::read, CALLER); }
EXPORTED void __tsan_write_range(void* at, size_t bytes) { touch(at, bytes, Touch::write, CALLER); }

// Under these names the units call memcpy and its like: see renamed.h.
EXPORTED void* triax_seen_memset(void* to, int value, size_t bytes) {
  touch(to, bytes, Touch::write, CALLER);
  return memset(to, value, bytes);
}
EXPORTED void* triax_seen_memcpy(void* to, const void* from, size_t bytes) {
  touch(from, bytes, Touch::read, CALLER);
  touch(to, bytes, Touch::write, CALLER);
  return memcpy(to, from, bytes);
}
EXPORTED void* triax_seen_memmove(void* to, const void* from, size_t bytes) {
  touch(from, bytes, Touch::read, CALLER);
  touch(to, bytes, Touch::write, CALLER);
  return memmove(to, from, bytes);
}
}
