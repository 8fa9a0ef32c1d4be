// Memory of the machine, outside of any GPU.
#pragma once
#include <cstdint>

namespace triax {

/// Zeroed, aligned to a page; pages are taken when they are first touched. Throws where they cannot be mapped.
uint64_t map_host_memory(int64_t bytes);
void unmap_host_memory(uint64_t address, int64_t bytes);
/// Bytes that this process can still have, by the machine and by its control group.
int64_t available_host_memory();

} // namespace triax
