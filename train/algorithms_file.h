// The algorithms that libraries chose for a run, in a file that later processes of it, and other runs, take up.
#pragma once
#include "comm/transport.h"
#include "kernels/algorithms.h"
#include <string>
#include <vector>

namespace triax {

/// In a run's folder, where a library of the device has a choice (cuBLASLt).
inline constexpr const char* kAlgorithmsName = "matmul_algorithms.json";

/// Collective: rank 0 reads the file, all take what stands in it. Returns a sentence where they do not, since it was
/// made with another version or device. Throws where the file is `wanted` and missing, or is none of these.
std::string take_algorithms(Transport& transport, const std::string& path, bool wanted);

/// Collective: where a rank has chosen something new, rank 0 writes what all ranks have chosen.
void save_algorithms(Transport& transport, const std::string& path);

std::string text_of(const Algorithms& algorithms);
Algorithms parse_algorithms(const std::string& text, const std::string& place);
/// Of texts one behind the other, of these sizes, one a rank; the lowest rank's choice counts.
Algorithms merged(const std::string& texts, const std::vector<uint64_t>& sizes);

} // namespace triax
