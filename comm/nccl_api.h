// What triax uses of NCCL's C interface, as NCCL 2.18 has it: later releases keep these values and layouts. No header
// of NCCL is needed to build, nor its library: see comm/nccl.h.
#pragma once
#include <climits>
#include <cstddef>

namespace triax {

struct NcclApi {
  using Communicator = struct NcclCommunicator*; ///< ncclComm_t
  using Stream = void*;                          ///< cudaStream_t
  struct UniqueId {
    char bytes[128];
  };
  enum Result : int {
    success = 0,
    cuda_error = 1,
    system_error = 2,
    internal_error = 3,
    invalid_argument = 4,
    invalid_usage = 5,
    remote_error = 6,
    in_progress = 7
  };
  enum Type : int { uint8 = 1, int32 = 2, float32 = 7, bfloat16 = 9 };
  static constexpr int kOldest = 21800; ///< 2.18.0: ncclGetVersion gives 10000 major + 100 minor + patch
  static constexpr int kSharesGpus = 23000;

  /// ncclConfig_t of 2.18; a later library takes what lies behind it as not given.
  struct Config {
    static constexpr int kNotGiven = INT_MIN;
    size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = kOldest;
    int blocking = kNotGiven; ///< 0: calls return `in_progress`, and comm_get_async_error says when they are done
    int cga_cluster_size = kNotGiven, min_ctas = kNotGiven, max_ctas = kNotGiven;
    const char* net_name = nullptr;
    int split_share = kNotGiven;
  };

  Result (*get_version)(int* version);
  Result (*get_unique_id)(UniqueId* id);
  Result (*comm_init_rank_config)(Communicator* made, int ranks, UniqueId id, int rank, Config* config);
  Result (*comm_finalize)(Communicator);
  Result (*comm_destroy)(Communicator);
  Result (*comm_abort)(Communicator);
  Result (*comm_get_async_error)(Communicator, Result* state);
  const char* (*get_error_string)(Result);
  const char* (*get_last_error)(Communicator);
  Result (*group_start)();
  Result (*group_end)();
  Result (*all_gather)(const void* mine, void* all, size_t count_each, Type, Communicator, Stream);
  Result (*send)(const void* data, size_t count, Type, int peer, Communicator, Stream);
  Result (*receive)(void* data, size_t count, Type, int peer, Communicator, Stream);
  // Since 2.19; null where the library has none.
  Result (*comm_register)(Communicator, void* memory, size_t bytes, void** handle);
  Result (*comm_deregister)(Communicator, void* handle);
};

} // namespace triax
