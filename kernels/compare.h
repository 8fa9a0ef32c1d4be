// Holds another implementation of an operation to the reference on the tensors of the run that chose it.
#pragma once
#include "kernels/device.h"

namespace triax {

/// What a kind of operation may differ by: per operand, the norm of the difference over the reference's.
constexpr double kMostDifferenceF32 = 1e-4, kMostDifferenceBf16 = 1e-2;
/// And a single element, by this many times as much of itself and the operand's root mean square together.
constexpr double kMostOfElement = 30;
/// The first launches of each kind that are compared.
constexpr int kComparedLaunches = 3;

/// Runs the reference, then `chosen`, from the same operands; what `chosen` wrote stays. Returns the largest relative
/// difference of any written operand. Throws where it exceeds what the dtype allows, or one of the two is no number
/// where the other is: with the operation, the operand and its worst element.
double compare_with_reference(Backend& backend, StreamId stream, const Op& op, const std::string& name, LaunchFn chosen,
                              LaunchFn reference, const Tensor& scratch, const char* data = "this run's tensors");

/// Writes what an operation of a kind reads, where that cannot be any numbers. The device follows no plan.
using RandomizeFn = void (*)(Device& device, const Op& op);
struct RandomRegistration {
  RandomRegistration(const char* kind, RandomizeFn randomize);
};

/// Every operation of the plan, each shape once, for which another implementation than the reference was chosen is run
/// on random operands and compared with it as above, before the first step, on a device that follows no plan yet. With
/// their largest relative difference. Left out is what reads other operands than floats and registers nothing that
/// writes them. Throws where this binary has no launch of what was chosen.
std::vector<std::pair<Op, double>> compare_on_random_data(Device& device, Backend& backend, const Plan& plan);

/// Demands that `launch`, of the implementation that runs for the operation, is there.
void demand_launch(LaunchFn launch, const Target& target, const Op& op);

} // namespace triax
