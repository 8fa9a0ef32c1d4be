// The pipeline's schedules as lists: what each stage computes and in which order, and what it sends and receives in
// between. Plain values: a schedule can be printed, checked and timed before anything runs.
#pragma once
#include "comm/mesh.h"
#include "model/params.h"
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace triax {

/// gpipe: all forwards, then all backwards (Huang et al. 2019). one_f_one_b: PipeDream-flush (Narayanan et al. 2021,
/// section 2.2). interleaved: the same over several chunks of layers a stage. zero_bubble: ZB-H1 (Qi et al. 2023,
/// section 2.1), weight gradients apart.
enum class PipelineKind { gpipe, one_f_one_b, interleaved, zero_bubble };
std::span<const char* const> names(PipelineKind); ///< "gpipe", "1f1b", "interleaved", "zb-h1"
const char* name_of(PipelineKind kind);
bool splits_backward(PipelineKind kind); ///< has it `weights` steps?

/// One piece of computing. `backward` takes the weights' gradients along, but where the schedule has `weights` steps.
struct PipelineStep {
  enum class What : uint8_t { forward, backward, weights };
  What what = What::forward;
  int micro_batch = 0, chunk = 0;
  bool operator==(const PipelineStep&) const = default;
};

/// What a chunk's output (or its gradient) travels as: `chunk` is the receiver's. Chunk c of stage s is followed by
/// chunk c of stage s + 1, that of the last stage by chunk c + 1 of stage 0. One stage alone transfers nothing.
struct PipelineTransfer {
  bool gradient = false; ///< backwards: from a later part of the model to an earlier one
  int micro_batch = 0, from_stage = 0, to_stage = 0, chunk = 0;
  bool operator==(const PipelineTransfer&) const = default;
};

/// Over which ranks of the pipeline it travels.
Axes link_of(const PipelineTransfer& transfer);

struct PipelineSchedule {
  PipelineKind kind = PipelineKind::one_f_one_b;
  int stages = 1, micro_batches = 1, chunks = 1; ///< chunks of layers a stage
  std::vector<std::vector<PipelineStep>> steps;  ///< by stage, in order
};

/// Any number of micro-batches from 1 up. More than one chunk with `interleaved` alone, which is 1f1b with one. Throws
/// on sizes below 1. The backward steps of a chunk, and its weights steps, are in the order of the micro-batches in
/// every schedule: gradients are always summed in the same order.
PipelineSchedule make_schedule(PipelineKind kind, int stages, int micro_batches, int chunks = 1);

/// What is wrong with a schedule, in sentences that name stage, micro-batch and chunk: each micro-batch passes each
/// chunk once in each direction and in order, a backward step follows its forward step and a weights step its backward
/// step, and the stages do not wait for each other for ever. Empty where all is well.
std::vector<std::string> schedule_faults(const PipelineSchedule& schedule);

/// How long a step takes, in any unit; of each chunk, so an interleaved stage's forward pass takes chunks times
/// `forward`. Where there are no `weights` steps, a backward step takes backward + weights.
struct StepCosts {
  double forward = 1, backward = 1, weights = 1, transfer = 0;
};
double cost_of(PipelineKind kind, PipelineStep::What what, const StepCosts& costs);
struct ScheduleTiming {
  std::vector<std::vector<double>> begin; ///< by stage and step, as in PipelineSchedule::steps
  double makespan = 0;
  double bubble = 0;               ///< idle share: (makespan - the busiest stage's computing) / that computing
  std::vector<int> most_in_flight; ///< by stage: (micro-batch, chunk) pairs whose forward step is done and whose last
                                   ///< step of the backward pass is not, at most at once
};
/// Each stage does its steps in order, each as soon as what it needs is there. Throws where it deadlocks.
ScheduleTiming time_schedule(const PipelineSchedule& schedule, const StepCosts& costs = {});

/// The published share of the bubble in the computing of a stage, where transfers take no time: (p - 1) / m for gpipe
/// and 1f1b, (p - 1) / (m v) interleaved, (p - 1) (F + B - W) / (m (F + B + W)) for zb-h1, which is meant for W no
/// longer than F and B; otherwise the shortest of the three stands in for the W that is taken off.
/// Exact for gpipe and 1f1b always, for zb-h1 where m >= p, interleaved where m is a multiple of p. The bubble is never
/// less; it is at most (p - 1) (F + B) / (m (F + B + W)) for zb-h1, and interleaved (M - m + (p - 1) / v) / m with m
/// rounded up to M, a multiple of p.
double bubble_formula(const PipelineSchedule& schedule, const StepCosts& costs = {});
/// The published number in flight on a stage s, and whether it is exact or a bound there. Exact: m for gpipe,
/// min(m, p - s) for 1f1b, min(m, p) for zb-h1 (on every stage what 1f1b has on the first), and interleaved
/// min(m v, 2 (p - s - 1) + (v - 1) p + 1) where m is a multiple of p; a bound for any other m.
struct InFlight {
  int most = 0;
  bool exact = false;
};
InFlight in_flight_formula(const PipelineSchedule& schedule, int stage);

/// What a stage issues, in order: its steps, and the transfers between them. On every stage transfers stand in the
/// order of one list over all stages (the time at which they can happen at the default costs), so that no two stages
/// wait for each other however transfers are queued: even if each is a rendezvous that holds up all behind it. A
/// receive is issued before the step during which it is expected, a send behind the step that makes it. Receives issued
/// whose step has not begun, at most at once: 1 for gpipe, 2 for 1f1b and zb-h1, max(4, 1 + p / 3) with several chunks
/// (measured).
struct PipelineAction {
  enum class What : uint8_t { compute, send, receive };
  What what = What::compute;
  PipelineStep step;         ///< of compute
  PipelineTransfer transfer; ///< of send and receive
};
std::vector<PipelineAction> pipeline_actions(const PipelineSchedule& schedule, int stage);

/// A picture in text at the default costs: a title, then a line a stage, a column for each unit of time: the
/// micro-batch's last digit forward, as one of a-j backward and of A-J for weights, a dot where the stage is idle.
/// Lines of more than `columns` end in '>'.
std::string draw(const PipelineSchedule& schedule, int columns = 120);

/// The layers of every chunk in the order of the model: stage s, chunk c is entry c * stages + s. `layout` empty: as
/// even as can be, embedding and head counting as a layer each, what is left over in front of the last chunk; otherwise
/// the numbers of layers, "4,5,5,4", in that order. Throws with the arithmetic where they do not add up to `layers`,
/// and where a chunk would be left with nothing: the first and the last can do without a layer.
std::vector<LayerRange> split_layers(int64_t layers, int stages, int chunks, const std::string& layout);

} // namespace triax
