// Faults that tests plant from outside by TRIAX_PLANT, to see that they are found. Only a build for tests knows any.
#pragma once
#include <cstdint>
#include <string>

namespace triax {

/// TRIAX_PLANT="skip_reduction:layer 1": is the reduction of this unit's gradients left out, on all ranks?
bool planted_skip_of_reduction(const std::string& unit);
/// TRIAX_PLANT="deviate:RANK:STEP": does this rank issue in this step what is not in its plan?
bool planted_deviation(int rank, int64_t step);
/// TRIAX_PLANT="sleep:RANK:STEP": this rank sleeps in this step, for ever. "stop:RANK:STEP": its whole process does.
void planted_sleep(int rank, int64_t step);
/// TRIAX_PLANT="slow_save": saving a checkpoint takes 6 s longer.
void planted_slow_save();

} // namespace triax
