// Comes first in a unit for the race detector: calls of these, those that the compiler makes of loops and of copies of
// structs among them, go to hooks.cpp.
#pragma once
#include <cstddef>

extern "C" {
void* memset(void* to, int value, size_t bytes) noexcept __asm__("triax_seen_memset");
void* memcpy(void* __restrict to, const void* __restrict from, size_t bytes) noexcept __asm__("triax_seen_memcpy");
void* memmove(void* to, const void* from, size_t bytes) noexcept __asm__("triax_seen_memmove");
}
