// The cores this process may use, and how its threads wait.
#pragma once
#include "comm/transport.h"

namespace triax {

/// Threads of one rank: `asked`, or where that is 0 the cores this process may run on, shared among the ranks of its
/// host unless the launcher bound each rank to its own.
int choose_threads(int64_t asked, int local_size);

/// Where ranks x threads exceed the host's cores, spinning threads take the time of others: starts this process anew
/// with passive waiting (the OpenMP runtime reads that from its environment once, before main). Call it before anything
/// else is started.
void wait_passively_if_crowded(char** arguments, int threads, int local_size);

/// Ranks of this launch on this host, from the launcher's environment; 1 where none says.
int announced_local_size();

} // namespace triax
