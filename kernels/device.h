// Where a step is issued: a device of real memory, or a ghost that records what would be done on any target.
#pragma once
#include "kernels/program.h"
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <source_location>

namespace triax {

class Device;
using Place = std::source_location; ///< in the source, where something was issued

/// A place in a stream's order that other streams can wait for. Valid inside the step that recorded it.
struct Event {
  int32_t id = -1;
};

/// Operations run in the order in which they are issued, asynchronously to other streams.
class Stream {
public:
  Stream(Device* device, StreamId id) : device_(device), id_(id) {}
  void run(const Op& op, const Place& place = Place::current()); ///< the only way to do device work
  Event record();
  void wait(Event event);

private:
  Device* device_;
  StreamId id_;
};

/// Transient bytes of a step; released when it goes out of scope or by `release`. A release that is not what the plan
/// has next is thrown by `release`; at the end of a scope, which cannot throw, it is kept for what is issued next.
class Allocation {
public:
  Allocation() = default;
  Allocation(Device* device, Tensor tensor, int32_t id) : device_(device), tensor_(tensor), id_(id) {}
  Allocation(Allocation&& other) noexcept;
  Allocation& operator=(Allocation&& other) noexcept;
  ~Allocation();
  void release();
  const Tensor& operator*() const { return tensor_; }
  const Tensor* operator->() const { return &tensor_; }
  operator const Tensor&() const { return tensor_; }

private:
  Device* device_ = nullptr;
  Tensor tensor_;
  int32_t id_ = -1;
};

/// What a kind of device must do. Streams are numbered by StreamId, events by the step. One thread issues.
class Backend {
public:
  virtual ~Backend() = default;
  virtual uint64_t allocate(Space space, int64_t bytes) = 0; ///< zeroed, aligned to kAlignment
  virtual void deallocate(Space space, uint64_t address, int64_t bytes) = 0;
  virtual int64_t available(Space space) const = 0; ///< bytes that can still be had
  virtual void launch(StreamId stream, LaunchFn launch, const Op& op, const Tensor& scratch) = 0;
  virtual void record(StreamId stream, int32_t event) = 0;
  virtual void wait(StreamId stream, int32_t event) = 0;
  virtual void fence() = 0;       ///< what is issued next, on any stream, follows all that was issued before
  virtual void synchronize() = 0; ///< returns when all issued work is done; throws what a stream's thread threw
  /// From now on an operation with a handle enqueues its work like any other, instead of doing it from the host.
  /// `check` throws what went wrong in such work; it is called whenever streams have been waited for.
  virtual void enqueue_collectives(const std::function<void()>& /*check*/) {}
  virtual void copy(uint64_t to, uint64_t from, int64_t bytes) = 0; ///< between any spaces, done on return
};
std::unique_ptr<Backend> make_host_backend(int threads);
void set_compute_team(int threads); ///< of the host, for the calling thread
/// Set by the CUDA part of the binary, null elsewhere. `detect_cuda` names the architecture of this process's GPU;
/// empty without one.
extern std::unique_ptr<Backend> (*make_cuda_backend)(const Target& target);
extern std::string (*detect_cuda)();
extern uint64_t (*gpu_identity)(); ///< of this process's GPU, which no other GPU has; 0 without one
/// The GPU where there is one and this binary can use it, else the CPU.
Target best_target();

class Device {
public:
  /// `threads` as at `open`: the workspace of a CPU's products and attention depends on it.
  static std::unique_ptr<Device> ghost(const Target& target, int threads = 1);
  /// Throws where the target is not on this machine or not in this binary. `threads` is the compute team of a CPU.
  static std::unique_ptr<Device> open(const Target& target, int threads);
  ~Device();

  const Target& target() const { return target_; }
  bool is_ghost() const { return !backend_; }
  Stream compute() { return {this, StreamId::compute}; }
  Stream communication() { return {this, StreamId::communication}; }
  Stream copy() { return {this, StreamId::copy}; }
  Stream stream(StreamId id) { return {this, id}; }

  /// Bytes for the whole run. On a device that follows a plan, the next ones of that plan.
  Tensor persistent(const std::string& name, Purpose purpose, Dtype dtype, std::initializer_list<int64_t> shape,
                    Space space = Space::device);
  /// Bytes inside a step (outside of a step only on a device that follows no plan: tests and tools).
  Allocation allocate(const std::string& name, Purpose purpose, Dtype dtype, std::initializer_list<int64_t> shape);

  /// A step of this kind starts and ends. A ghost records it; a device that follows a plan holds what is issued to it,
  /// instruction by instruction, and throws at the first difference, before it runs.
  /// Where ranks may differ in what they issue, they are not held to the same plan.
  enum class Ranks { agree, differ };
  void begin(const std::string& kind, Ranks ranks = Ranks::agree);
  void end();

  /// Of a ghost: everything recorded, checked and packed.
  Plan plan() const;
  /// Of a real device, before anything is allocated: compare what was chosen over the reference with it on random data
  /// of the plan's shapes, then take the plan's arena, exactly, and follow it from now on. Throws where the memory does
  /// not suffice, or where they differ; `ranks_on_host` processes, this one included, will take as much of the host's.
  void follow(const Plan& plan, int ranks_on_host = 1);

  /// Done on return, after all issued work. Nothing happens on a ghost.
  void write(const Tensor& dense, const void* from);
  void read(const Tensor& dense, void* to);
  void synchronize();
  /// On a device that follows no plan: the call that runs `op` on the compute stream, its launch and workspace found
  /// once. For measurements.
  std::function<void()> prepare(const Op& op);
  int64_t available(Space space) const { return backend_->available(space); } ///< bytes that can still be had
  /// What was chosen over the reference and compared with it, before and on the first launches of this run: a sentence
  /// each.
  std::vector<std::string> comparisons() const;
  /// See Backend.
  void enqueue_collectives(const std::function<void()>& check) { backend_->enqueue_collectives(check); }
  /// The device memory of the plan that is followed; 0 bytes without one.
  struct Bytes {
    uint64_t address = 0;
    int64_t bytes = 0;
  };
  Bytes arena() const;
  /// Between any spaces, by the calling thread, done on return; it waits for nothing that was issued.
  void transfer(uint64_t to, uint64_t from, int64_t bytes) { backend_->copy(to, from, bytes); }

private:
  friend class Stream;
  friend class Allocation;
  Device() = default;
  void run(StreamId stream, const Op& op, const Place& place);
  void release(int32_t id, const Tensor& tensor);
  void hold_to_plan(uint64_t hash, const char* what, const Op* op = nullptr);
  void throw_violation();
  void record_op(StreamId stream, const Op& op, const Place& place);
  int32_t signature_of(const Op& op); ///< described when first met
  Reference locate(const Tensor& tensor, const Op& op) const;
  int64_t scratch_of(const Op& op) const;
  /// A launch, and where it is of another implementation than the reference, what that is held to at first.
  struct Choice {
    LaunchFn launch = nullptr, reference = nullptr;
    int random_shapes = 0, compared = 0;
    double difference = 0; ///< the largest of those compared
  };
  Choice& choice_of(const Op& op);
  Choice& planned_choice(const Op& op);   ///< of the instruction that was issued last; found once a signature
  void compare_choices(const Plan& plan); ///< on random data

  Target target_;
  std::unique_ptr<Backend> backend_;
  const Program* following_ = nullptr; ///< the kind of step in progress, of plan_
  std::unique_ptr<Plan> plan_;
  std::array<uint64_t, kSpaces> base_{}; ///< of the arena (of a ghost: of its persistent addresses)
  std::vector<Buffer> persistent_;
  std::array<std::vector<int32_t>, kSpaces> persistent_of_; ///< of persistent_, by space, in the order of offsets
  std::array<int64_t, kSpaces> persistent_bytes_{};
  std::vector<Program> recorded_;
  std::unique_ptr<Program> recording_;
  std::unordered_multimap<uint64_t, int32_t> signatures_; ///< of the recording, by hash
  std::unordered_map<std::string, int32_t> places_;       ///< of the recording
  std::vector<uint64_t> ghost_addresses_;                 ///< of the recording's buffers, ascending
  std::vector<bool> live_;                                ///< of the recording's buffers: not yet released
  size_t issued_ = 0;                                     ///< instructions of the step in progress
  int32_t events_ = 0, buffers_ = 0;
  bool in_step_ = false;
  std::exception_ptr violation_;                                    ///< by a release at the end of a scope
  std::map<std::pair<const OpKind*, std::string>, Choice> choices_; ///< by kind and implementation
  std::unordered_map<const Signature*, Choice*> planned_choices_;   ///< of plan_
  struct Owned {
    Space space;
    uint64_t address;
    int64_t bytes;
  };
  std::vector<Owned> owned_;
};

} // namespace triax
