// A thread that reads memory again and again until another writes it goes on for ever, for threads take turns only at
// barriers and warp operations. Such a kernel ends the process, with the line.
#include "kernels/check.h"
#include "kernels/emulated/block.h"
#include <csignal>
#include <cstdio>
#include <execinfo.h>
#include <sys/time.h>
#include <unistd.h>

namespace triax::emulation {
namespace {

uint64_t turns_at_last_look = 0;

/// Where the kernel is that was interrupted.
std::string interrupted_at() {
  void* frames[24];
  const int count = backtrace(frames, 24);
  for (int i = 3; i < count; ++i) // behind this function, `look` and the call of the signal's handler
    if (const std::string at = source_of(frames[i]); at.find("kernels/emulated/") != 0 && at != kUnknownLine) return at;
  return kUnknownLine;
}

void look(int) {
  if (!block.current) return;
  if (block.turns != turns_at_last_look) {
    turns_at_last_look = block.turns;
    return;
  }
  const std::string text =
      concat("emulation: the thread goes on without end at ", interrupted_at(), "\n  ", where(), "\n");
  fputs(text.c_str(), stderr);
  _exit(1);
}

void set_timer(double seconds) {
  const auto whole = time_t(seconds);
  const timeval every{whole, suseconds_t((seconds - double(whole)) * 1e6)};
  const itimerval timer{every, every};
  setitimer(ITIMER_VIRTUAL, &timer, nullptr);
}

} // namespace

Watch::Watch() {
  struct sigaction action {};
  action.sa_handler = look;
  action.sa_flags = SA_RESTART;
  sigaction(SIGVTALRM, &action, nullptr);
  turns_at_last_look = ++block.turns;
  set_timer(schedule.patience);
}

Watch::~Watch() { set_timer(0); }

} // namespace triax::emulation
