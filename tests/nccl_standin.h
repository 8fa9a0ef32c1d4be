// What tests ask of the stand-in for NCCL beside NCCL's own interface: extern "C", found by dlsym.
#pragma once

namespace triax {

struct StandinControl {
  void* (*make_stream)(); ///< of the calling thread's device: each thread has one
  /// Returns when the stream is empty, also where an abort has emptied it; false after `ms` milliseconds.
  bool (*synchronize)(void* stream, int ms);
  void (*forget)();             ///< everything: a fresh start
  void (*fail_at)(int launch);  ///< the communicator of the n-th launch from now, from 1, reports a system error
  int (*open)();                ///< communicators that are neither destroyed nor aborted
  int (*registered)();          ///< ranges of memory
  int (*most_waiting)();        ///< launches of one device that have waited behind each other
  const char* (*first_fault)(); ///< of what was called against the rules; empty: none
};

} // namespace triax

/// The one symbol beside NCCL's.
extern "C" const triax::StandinControl* nccl_standin_control();
