// What the rest of triax knows of MPI: a table of functions in a shared object beside the binary (libtriax_mpi.so),
// opened at run time. Where it is absent there is one rank. All calls come from one thread; none blocks inside MPI but
// `initialise`.
#pragma once
#include <cstdint>

namespace triax {

struct MpiApi {
  using Communicator = void*;
  using Request = void*;
  static constexpr int kAny = -1; ///< rank to receive from

  const char* (*initialise)(); ///< null, or why it failed
  int (*rank)();
  int (*size)();
  int (*local_size)();  ///< ranks of this host
  int (*local_first)(); ///< the lowest of them
  Communicator (*world)();
  Communicator (*communicator)(const int* ranks, int count); ///< collective among these ranks of the world
  Request (*sum)(double* value, Communicator);               ///< over all ranks, in place
  /// Bitwise or of all ranks' data, at the root.
  Request (*combine)(void* data, int64_t bytes, int root, Communicator);
  Request (*broadcast)(void* data, int64_t bytes, int root, Communicator);
  /// Also where `mine` is this rank's place in `all`.
  Request (*all_gather)(const void* mine, void* all, int64_t bytes_each, Communicator);
  /// Piece r of `send` goes to rank r, which keeps it as piece s, of this rank s, of `receive`.
  Request (*all_to_all)(const void* send, void* receive, int64_t bytes_each, Communicator);
  /// `send` goes to rank `to` while `receive` comes from rank `from`.
  Request (*shift)(const void* send, int to, void* receive, int from, int64_t bytes, Communicator);
  Request (*send)(const void* data, int64_t bytes, int to, Communicator);
  Request (*receive)(void* data, int64_t bytes, int from, Communicator);
  Request (*barrier)(Communicator);
  bool (*test)(Request* request);   ///< done? then the request is freed
  void (*cancel)(Request* request); ///< a send or receive that will not be done; the request is freed
  void (*finalise)();
  void (*abort)(int code);
  const char* (*library)(); ///< its name and version; may be called by any thread
};

} // namespace triax

/// The one symbol of the shared object.
extern "C" const triax::MpiApi* triax_mpi_api();
