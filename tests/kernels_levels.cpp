// The same tests on the lower of the host's levels, which this CPU would not choose by itself.
#include "kernels/op.h"
#include <cstdlib>
#include <doctest/doctest.h>
#include <string>

namespace triax {

TEST_SUITE_BEGIN("kernels_levels");

TEST_CASE("all kernels pass their tests on level v3") {
  if (std::string(host_level()) != "v4") return; // it is the only one here
  CHECK(std::system(
            "TRIAX_HOST_LEVEL=v3 /proc/$PPID/exe --test-suite='kernels_*' "
            "--test-suite-exclude=kernels_levels,kernels_oracle,kernels_program,kernels_matmul --minimal=true >&2") ==
        0);
}

TEST_SUITE_END();

} // namespace triax
