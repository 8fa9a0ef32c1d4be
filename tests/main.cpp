#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

// g++ 13 and later give each stack a shadow by default, so each of the emulation's fibers; nothing here returns
// addresses of its own stack.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "detect_stack_use_after_return=0";
}
