// The emulation finds every fault of planted.cu, names kernel, block, thread and line, and has nothing to say of the
// repaired twins.
#include "kernels/emulated/emulation.h"
#include "tests/helpers.h"
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace triax {
namespace {

using emulation::Emulation;
using emulation::Order;
using test::content;
using test::has;

struct Fault {
  const char* name;
  const char* what;       ///< part of the report
  bool sanitizers, races; ///< who finds it
  int block, thread;      ///< the first to be seen, of threads in their order
};
const Fault kFaults[] = {
    {"missing_barrier", "race on shared memory: thread 0 of the block wrote", false, true, 0, 1},
    {"early_overwrite", "race on shared memory: thread 255 of the block read", false, true, 0, 0},
    {"race_between_blocks", "race on global memory: thread 0 of another block wrote", false, true, 1, 0},
    {"read_of_other_block", "race on global memory: thread 0 of another block wrote", false, true, 1, 0},
    {"two_write_one", "race on global memory: thread 0 of the block wrote", false, true, 0, 1},
    {"atomic_and_plain", "race on global memory: thread 0 of the block read", false, true, 0, 3},
    {"missing_syncwarp", "race on shared memory: thread 0 of the block wrote", false, true, 0, 1},
    {"half_syncwarp", "race on shared memory: thread 15 of the block wrote", false, true, 0, 31},
    {"unwritten_shared", "nobody in the block has written", false, true, 0, 7},
    {"left_by_other_block", "nobody in the block has written", false, true, 1, 63},
    {"missing_wait", "nobody in the block has written", false, true, 0, 63},
    {"weak_wait", "nobody in the block has written", false, true, 0, 63},
    {"copy_into_what_is_read", "race on shared memory: thread 63 of the block read", false, true, 0, 48},
    {"copy_without_wait", "ends before its cp.async copies", true, true, 0, 0},
    {"divergent_barrier", "others wait for it at __syncthreads", true, true, 0, 128},
    {"two_barriers", "at different __syncthreads", true, true, 0, 255},
    {"early_return", "some threads of the block have ended", true, true, 0, 255},
    {"divergent_shuffle", "names a lane that has ended", true, true, 0, 16},
    {"barrier_and_shuffle", "no thread of the block can go on", true, true, 0, 31},
    {"shuffle_outside_mask", "reads lane 20, which is not in the mask", true, true, 0, 0},
    {"not_in_mask", "the calling lane is not in its mask", true, true, 0, 16},
    {"different_masks", "disagree about the mask", true, true, 0, 5},
    {"endless_wait", "goes on without end", true, true, 0, 40},
    {"static_overflow", "AddressSanitizer: global-buffer-overflow", true, false, 0, 255},
    {"index_overflow", "index 256 out of bounds", true, false, 0, 255},
    {"dynamic_overflow", "AddressSanitizer: use-after-poison", true, false, 0, 255},
    {"dynamic_overflow", "past the end of the 1024 bytes of dynamic shared memory", false, true, 0, 255},
    {"global_overflow", "AddressSanitizer: heap-buffer-overflow", true, false, 1, 511},
    {"global_overflow", "write to 4 bytes outside of all operands", false, true, 1, 511},
    {"read_before_begin", "AddressSanitizer: heap-buffer-overflow", true, false, 0, 0},
    {"read_before_begin", "read of 4 bytes outside of all operands", false, true, 0, 0},
    {"scratch_overflow", "AddressSanitizer: heap-buffer-overflow", true, false, 0, 255},
    {"scratch_overflow", "write to 4 bytes outside of all operands", false, true, 0, 255},
    {"use_after_free", "AddressSanitizer: heap-use-after-free", true, false, 0, 0},
    {"misaligned_vector", "misaligned address", true, true, 0, 5},
    {"misaligned_copy", "the global address is not aligned to 16 bytes", true, true, 0, 0},
    {"misaligned_ldmatrix", "a row is not aligned to 16 bytes", true, true, 0, 9},
    {"signed_overflow", "signed integer overflow", true, false, 0, 41},
    {"wide_shift", "shift exponent 32 is too large", true, false, 0, 32},
    {"write_to_input", "write to operand 1 of write_to_input, read f32[1024]", false, true, 0, 0},
    {"read_of_output", "read of what the operation only writes, before it is written", false, true, 0, 0},
    {"write_of_gap", "write to 4 bytes outside of all operands", false, true, 0, 0},
};

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitizers = true;
#else
constexpr bool kSanitizers = false;
#endif

Description describe(const Target&, const Op&) {
  Description d;
  d.scratch = 1024;
  return d;
}

/// Runs the kernel in this process; throws, or ends it, where something is wrong.
void run(const char* name, bool fault, const char* units, Order order) {
  const Emulation emulation(units, order, 3);
  emulation::schedule.patience = 0.2;
  const auto device = Device::open(Target::parse("sm_90a"), 1);
  const OpKind kind{name, describe};
  const std::string kernel = name;
  Allocation out = device->allocate("out", Purpose::activations, Dtype::f32, {1024}),
             in = device->allocate("in", Purpose::activations, Dtype::f32, {1024});
  Tensor to = out, from = in;
  if (kernel == "use_after_free" && fault) in.release();
  if (kernel == "write_of_gap") to = to.view({8, 128}).slice(1, 0, 96);
  device->compute().run(Op(kind).update(to).read(from).set(int32_t(fault)));
}

/// What another process says before it ends, which `f` runs in.
template <class F> std::string said_by(const F& f) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    const std::string error = test::error_of(f);
    fputs(error.c_str(), stderr);
    _exit(0);
  }
  close(ends[1]);
  std::string all;
  char part[4096];
  for (ssize_t n; (n = read(ends[0], part, sizeof(part))) > 0;) all.append(part, size_t(n));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return all;
}

/// Of the line of planted.cu that ends in "// at ... NAME ...".
int line_of(const std::string& name) {
  std::istringstream file(content(TRIAX_SOURCE_DIR "/tests/planted.cu"));
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const size_t at = line.find("// at ");
    if (at != std::string::npos && has(line.substr(at) + ",", " " + name + ",")) return number;
  }
  FAIL("planted.cu marks no line for " << name);
  return 0;
}

void check_found(const Fault& fault, const char* units, bool in_this_process) {
  CAPTURE(std::string(fault.name));
  CAPTURE(std::string(units));
  const auto go = [&] { run(fault.name, true, units, Order::forward); };
  const std::string report = in_this_process ? test::error_of(go) : said_by(go);
  CAPTURE(report);
  CHECK(has(report, fault.what));
  CHECK(has(report, concat("kernel ", fault.name, ", block (", fault.block, ", 0, 0), thread (", fault.thread, ", ")));
  CHECK(has(report, concat("tests/planted.cu:", line_of(fault.name))));
}

TEST_SUITE_BEGIN("emulator_planted");

TEST_CASE("emulation: each planted fault is found with kernel, block, thread and line") {
  for (const Fault& fault : kFaults) {
    if (fault.sanitizers && kSanitizers) check_found(fault, "emulated", false);
    if (fault.races) check_found(fault, "races", std::string(fault.name) != "endless_wait");
  }
}

TEST_CASE("emulation: each planted fault that the race detector finds, it finds in any order of the threads") {
  for (const Fault& fault : kFaults) {
    if (!fault.races || std::string(fault.name) == "endless_wait") continue;
    CAPTURE(std::string(fault.name));
    for (const Order order : {Order::reverse, Order::shuffled})
      CHECK(test::error_of([&] { run(fault.name, true, "races", order); }) != "");
  }
}

TEST_CASE("emulation: the repaired twins are right") {
  for (const char* units : {"emulated", "races"})
    for (const Order order : {Order::forward, Order::reverse, Order::shuffled}) {
      CAPTURE(std::string(units));
      CHECK(said_by([&] {
              for (const Fault& fault : kFaults) {
                const std::string error = test::error_of([&] { run(fault.name, false, units, order); });
                if (!error.empty()) throw Error(error);
              }
            }) == "");
    }
}

TEST_SUITE_END();

} // namespace
} // namespace triax
