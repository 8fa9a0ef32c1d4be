// A GPU as a device: a CUDA stream for each stream. Where collectives are enqueued (NCCL), the issuing thread makes
// every launch, so a device's collectives are launched in program order, over all its communicators: NCCL needs the
// same order on all ranks, and comm/collective_check.h has seen that the plans have it. Where the host makes them
// (MPI), each of their streams has a thread, since they need finished data.
#include "kernels/device.h"
#include "kernels/host_memory.h"
#include "kernels/simt.h"
#include "kernels/worker.h"
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

namespace triax {
inline namespace SIMT_NS {

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError(); // an error that can be survived must not be found again by the next launch
  fail(concat("CUDA: ", what, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")"));
}

namespace {

/// Stays free beside the arena, for what CUDA loads when it is first used: kernels, cuBLASLt's among them. A guess, to
/// be replaced by what is measured on the machine.
constexpr int64_t kReserve = int64_t(512) << 20;

__global__ void probe_kernel() {}

/// Which of the node's GPUs: the launcher's number of this process on its node, in turn.
int device_of_this_process(int count) {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
    if (const char* value = std::getenv(name)) return std::atoi(value) % count;
  return 0;
}

/// "sm_90a": with the features of that architecture alone where there is such code.
std::string architecture(int capability) {
  return concat("sm_", capability, capability / 10 == 9 || capability / 10 == 10 ? "a" : "");
}

struct Gpu {
  int index = 0;
  int capability = 0; ///< 90 for 9.0
  std::string name;
  std::string problem; ///< why it cannot be used, and what to do; empty where it can
};

/// Makes the GPU of this process the calling thread's.
Gpu find_gpu() {
  Gpu gpu;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    gpu.problem = concat("it needs an NVIDIA GPU and its driver, and ",
                         status == cudaSuccess ? "there is none" : cudaGetErrorString(status),
                         "; nvidia-smi must list a GPU on this machine, or use --target cpu");
    return gpu;
  }
  gpu.index = device_of_this_process(count);
  check_cuda(cudaSetDevice(gpu.index), "cudaSetDevice");
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, gpu.index), "cudaGetDeviceProperties");
  gpu.capability = 10 * properties.major + properties.minor;
  gpu.name = properties.name;
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(probe_kernel)) != cudaSuccess) {
    cudaGetLastError();
    gpu.problem = concat("this binary has no code for ", gpu.name, ", ", architecture(gpu.capability),
                         "; build it with `make cuda CUDA_ARCHS=", architecture(gpu.capability).substr(3), "`");
  }
  return gpu;
}

std::string detect() {
  const Gpu gpu = find_gpu();
  return gpu.problem.empty() ? architecture(gpu.capability) : "";
}

uint64_t identity() {
  cudaDeviceProp properties;
  const Gpu gpu = find_gpu();
  if (!gpu.problem.empty() || cudaGetDeviceProperties(&properties, gpu.index) != cudaSuccess) return 0;
  uint64_t halves[2];
  static_assert(sizeof halves == sizeof properties.uuid);
  std::memcpy(halves, &properties.uuid, sizeof halves);
  return (halves[0] * 0x9e3779b97f4a7c15 ^ halves[1]) | 1;
}

/// The number of this process's GPU; throws where it does not suit the target.
int choose_device(const Target& target) {
  const Gpu gpu = find_gpu();
  DEMAND(gpu.problem.empty(), "target ", target.name, " cannot be used here: ", gpu.problem);
  const int want = std::atoi(target.name.c_str() + 3), have = gpu.capability;
  const bool exact = target.name.back() == 'a'; // code for sm_90a runs on no other architecture
  DEMAND(exact ? have == want : have / 10 == want / 10 && have >= want, "target ", target.name,
         " cannot be used here: GPU ", gpu.index, ", ", gpu.name, ", is ", architecture(have), "; use that target");
  return gpu.index;
}

class CudaBackend final : public Backend {
public:
  explicit CudaBackend(const Target& target) : device_(choose_device(target)) {
    int least = 0, greatest = 0; // compute yields to what others wait for
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    for (int s = 0; s < kStreams; ++s) {
      streams_[size_t(s)] = create_stream(StreamId(s) == StreamId::compute ? least : greatest);
      fences_[size_t(s)] = create_event();
    }
    transfers_ = create_stream(greatest);
  }
  ~CudaBackend() override {
    for (auto& worker : workers_) worker.reset();
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    for (cudaEvent_t event : fences_) cudaEventDestroy(event);
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    cudaStreamDestroy(transfers_);
  }

  uint64_t allocate(Space space, int64_t bytes) override {
    if (space == Space::host) return map_host_memory(bytes);
    void* at = nullptr;
    const cudaError_t status = space == Space::device ? cudaMalloc(&at, size_t(bytes))
                                                      : cudaHostAlloc(&at, size_t(bytes), cudaHostAllocPortable);
    if (status == cudaErrorMemoryAllocation) cudaGetLastError();
    DEMAND(status != cudaErrorMemoryAllocation, "not enough ", name_of(space), " memory: ", bytes >> 20,
           " MiB could not be had, ", available(space) >> 20, " MiB are available");
    check_cuda(status, "allocation");
    if (space == Space::device) {
      check_cuda(cudaMemsetAsync(at, 0, size_t(bytes), transfers_), "cudaMemsetAsync");
      check_cuda(cudaStreamSynchronize(transfers_), "cudaMemsetAsync");
    } else {
      std::memset(at, 0, size_t(bytes));
    }
    return reinterpret_cast<uint64_t>(at);
  }
  void deallocate(Space space, uint64_t address, int64_t bytes) override {
    void* at = reinterpret_cast<void*>(address); // nothing is thrown: an error may be on its way already
    if (space == Space::host) unmap_host_memory(address, bytes);
    if (space == Space::pinned) cudaFreeHost(at);
    if (space == Space::device) cudaFree(at);
  }
  int64_t available(Space space) const override {
    if (space != Space::device) return available_host_memory();
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return std::max<int64_t>(int64_t(free) - kReserve, 0);
  }

  void launch(StreamId stream, LaunchFn launch, const Op& op, const Tensor& scratch) override {
    const LaunchContext context{native(stream), 1, scratch};
    const auto task = [this, launch, op, context] {
      // The host's collective reads and writes the data: what its stream has issued must be done.
      if (op.handle && !check_)
        check_cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(context.native_stream)), op.kind->name);
      launch(op, context);
    };
    has_thread(stream) ? push(stream, task) : task();
  }

  void record(StreamId stream, int32_t event) override {
    while (size_t(event) >= events_.size()) {
      events_.push_back(create_event());
      recorders_.push_back(stream);
    }
    recorders_[size_t(event)] = stream;
    const cudaEvent_t handle = events_[size_t(event)];
    if (!has_thread(stream)) return check_cuda(cudaEventRecord(handle, native(stream)), "cudaEventRecord");
    push(stream, [this, handle, event, stream, generation = generation_] {
      check_cuda(cudaEventRecord(handle, native(stream)), "cudaEventRecord");
      recorded_.set(event, generation);
    });
  }

  void wait(StreamId stream, int32_t event) override {
    // CUDA takes an event that was not yet recorded for one that is over, so the recorder's thread must have come to
    // it.
    const StreamId recorder = recorders_[size_t(event)];
    const bool must_wait = has_thread(recorder) && recorder != stream;
    const auto task = [this, event, must_wait, stream, handle = events_[size_t(event)], generation = generation_] {
      if (must_wait) recorded_.wait(event, generation);
      check_cuda(cudaStreamWaitEvent(native(stream), handle, 0), "cudaStreamWaitEvent");
    };
    if (has_thread(stream)) return push(stream, task);
    task();
    if (must_wait && failed_) synchronize();
  }

  void fence() override {
    drain(); // also: no task of the step before can see an event recorded anew
    ++generation_;
    for (int s = 0; s < kStreams; ++s)
      check_cuda(cudaEventRecord(fences_[size_t(s)], streams_[size_t(s)]), "cudaEventRecord");
    for (int s = 0; s < kStreams; ++s)
      for (int other = 0; other < kStreams; ++other)
        if (s != other)
          check_cuda(cudaStreamWaitEvent(streams_[size_t(s)], fences_[size_t(other)], 0), "cudaStreamWaitEvent");
  }
  void synchronize() override {
    drain();
    cudaError_t status = cudaSuccess;
    for (cudaStream_t stream : streams_)
      if (const cudaError_t now = cudaStreamSynchronize(stream); status == cudaSuccess) status = now;
    if (check_) check_(); // says more
    check_cuda(status, "a stream's work");
  }
  void enqueue_collectives(const std::function<void()>& check) override {
    drain(); // the threads have nothing to do from now on
    check_ = check;
  }
  void copy(uint64_t to, uint64_t from, int64_t bytes) override {
    // A stream of its own: the default one would wait for none of ours, ours may be waiting for the caller.
    check_cuda(cudaMemcpyAsync(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size_t(bytes),
                               cudaMemcpyDefault, transfers_),
               "copy");
    check_cuda(cudaStreamSynchronize(transfers_), "copy");
  }

private:
  static cudaStream_t create_stream(int priority) {
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "cudaStreamCreateWithPriority");
    return stream;
  }
  static cudaEvent_t create_event() {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return event;
  }
  cudaStream_t native(StreamId stream) const { return streams_[size_t(stream)]; }
  void drain() {
    for (auto& worker : workers_)
      if (worker) worker->drain();
  }
  /// The streams of collectives, which block their issuer where MPI is the transport.
  bool has_thread(StreamId stream) const {
    return !check_ &&
           (stream == StreamId::communication || stream == StreamId::exchange || stream == StreamId::pipeline);
  }
  void push(StreamId stream, std::function<void()> task) {
    auto& worker = workers_[size_t(stream)];
    if (!worker) {
      worker = std::make_unique<Worker>();
      push(stream, [this] { check_cuda(cudaSetDevice(device_), "cudaSetDevice"); }); // each thread has its own
    }
    worker->push([this, task = std::move(task)] {
      try {
        task();
      } catch (...) {
        failed_ = true;
        recorded_.break_all();
        throw;
      }
    });
  }

  int device_;
  std::array<cudaStream_t, kStreams> streams_{};
  std::array<cudaEvent_t, kStreams> fences_{};
  cudaStream_t transfers_ = nullptr; ///< of `copy`
  std::vector<cudaEvent_t> events_;  ///< by number; used again in every step
  std::vector<StreamId> recorders_;  ///< the stream that recorded it last
  uint64_t generation_ = 1;          ///< of the step; see Events
  Events recorded_;                  ///< those of streams with a thread that it has come to
  std::atomic<bool> failed_ = false;
  std::function<void()> check_;                           ///< of enqueued collectives; empty: the host makes them
  std::array<std::unique_ptr<Worker>, kStreams> workers_; // last: they end first
};

std::unique_ptr<Backend> open_cuda(const Target& target) { return std::make_unique<CudaBackend>(target); }
[[maybe_unused]] const bool kInstalled =
    (make_cuda_backend = open_cuda, detect_cuda = detect, gpu_identity = identity, true);

} // namespace
} // namespace SIMT_NS
} // namespace triax
