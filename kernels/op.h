// An operation is a value: kind, plain attributes, operands read and written. Nothing that varies from step to step is
// captured in it: that is read from a device tensor (see step_state.h), so that a recorded step can be compared,
// replayed and captured.
#pragma once
#include "kernels/tensor.h"
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace triax {

struct Op;

/// Where an operation would run: the host ("cpu") or a GPU architecture ("sm_80", "sm_90a", ...). A ghost device takes
/// any target.
struct Target {
  enum class Kind : uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  std::string name = "cpu";
  /// Throws on a name that is neither "cpu" nor "sm_NN[a]".
  static Target parse(const std::string& name);
  bool operator==(const Target&) const = default;
};

/// What can be known of an operation without running it, for any target.
struct Description {
  double flops = 0;                 ///< floating-point operations that the mathematics needs
  double bytes = 0;                 ///< the least that must be read and written
  int64_t scratch = 0;              ///< bytes of workspace, taken from the arena
  std::vector<std::string> kernels; ///< what will be issued on the target
  bool trusted = false;             ///< a library call whose inside cannot be seen
};

/// What a launch needs beside the operation.
struct LaunchContext {
  void* native_stream = nullptr; ///< cudaStream_t on a GPU
  int threads = 1;               ///< size of the compute team on a CPU
  Tensor scratch;                ///< u8[Description::scratch]; empty where none was asked for
};

using DescribeFn = Description (*)(const Target&, const Op&);
using LaunchFn = void (*)(const Op&, const LaunchContext&);

/// One entry of the catalogue of operations; a static object in the operation's file. `name` is unique.
struct OpKind {
  const char* name;
  DescribeFn describe;
};

/// The name of the implementation that the others of a kind are compared with, and that runs unless another is chosen.
inline constexpr const char* kReference = "triax";

/// The implementations of each kind: of a name, for "v3", "v4" or "portable" (the host, by instruction set), "host"
/// (any host), "cuda", or an emulation of a GPU ("emulated", "races", "races_small"). Where another one needs more than
/// the kind describes, workspace for instance, it comes with a description of its own.
struct LaunchRegistration {
  LaunchRegistration(const char* backend, const char* kind, LaunchFn launch, const char* name = kReference,
                     DescribeFn describe = nullptr);
};
/// A name without a launch in this binary, that plans for other targets know.
struct NameRegistration {
  NameRegistration(const char* kind, const char* name, DescribeFn describe);
};
/// From now on this process runs and plans `name` for `kind`: a kind ("norm_forward") or the beginning of several
/// ("norm"), those that have it. Throws where there is none, with the names that are there.
void choose_implementation(const std::string& kind, const std::string& name);
std::string chosen_implementation(const OpKind& kind);
/// `name` is chosen for one kind until the end of the scope.
class ImplementationScope {
public:
  ImplementationScope(const OpKind& kind, const std::string& name) : kind_(kind), before_(chosen_implementation(kind)) {
    choose_implementation(kind.name, name);
  }
  ~ImplementationScope() { choose_implementation(kind_.name, before_); }
  ImplementationScope(const ImplementationScope&) = delete;
  ImplementationScope& operator=(const ImplementationScope&) = delete;

private:
  const OpKind& kind_;
  std::string before_;
};
/// All names of a kind, the reference first.
std::vector<std::string> implementations(const OpKind& kind);

/// The names that choose_implementation takes for kinds, a forward and a backward pass together: "adamw", "norm", ...
std::vector<std::string> operation_families();

/// By the chosen implementation, with workspace enough for the reference as well.
Description describe(const Target& target, const Op& op);

/// What GPUs run from now on: "cuda", or an emulation of them, which for what it lacks takes the host's (for tests).
void run_on_gpu(const char* units);
/// The launch of `kind` on a target's kind of device; null where this binary has none. The best host level is chosen at
/// first use.
LaunchFn find_launch(const OpKind& kind, Target::Kind target, const std::string& name);
LaunchFn find_launch(const OpKind& kind, Target::Kind target); ///< of the chosen implementation
/// "v4", "v3" or "portable": the host level in use. TRIAX_HOST_LEVEL in the environment lowers it (for tests).
const char* host_level();

enum class Access : uint8_t { read, write, update }; ///< update: read and written
struct Operand {
  Tensor tensor;
  Access access = Access::read;
};

constexpr int kMaxOperands = 12;
constexpr int kAttributeBytes = 64;

struct Op {
  const OpKind* kind = nullptr;
  std::array<Operand, kMaxOperands> operands{};
  int32_t operand_count = 0;
  alignas(8) std::array<std::byte, kAttributeBytes> attributes{}; ///< a plain struct, zero behind it
  void* handle = nullptr; ///< what a collective's launch needs (its transport); not part of the value

  explicit Op(const OpKind& k) : kind(&k) {}
  Op& read(const Tensor& t) { return add(t, Access::read); }
  Op& write(const Tensor& t) { return add(t, Access::write); }
  Op& update(const Tensor& t) { return add(t, Access::update); }
  /// Operands keep their place: an absent one is an empty tensor.
  TRIAX_INLINE const Tensor& operator[](int i) const { return operands[i].tensor; }
  TRIAX_INLINE bool has(int i) const { return i < operand_count && !operands[i].tensor.empty(); }

  /// Attributes are structs of 4- and 8-byte numbers without padding.
  template <class T> Op& set(const T& value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kAttributeBytes);
    std::memcpy(attributes.data(), &value, sizeof(T));
    return *this;
  }
  template <class T> TRIAX_INLINE T get() const {
    T value;
    __builtin_memcpy(&value, attributes.data(), sizeof(T));
    return value;
  }
  std::string describe() const; ///< "rms_norm(write bf16[8, 64], read ...)"

private:
  Op& add(const Tensor& t, Access access);
};

/// Bytes of all operands, each counted once for reading and once for writing.
double operand_bytes(const Op& op);

} // namespace triax
