// What a pipeline's queues and transfers cost beside its schedule: real actions over real links, whose computing
// sleeps.
#pragma once
#include "comm/transport.h"
#include "train/pipeline.h"

namespace triax {

struct PipelineRow {
  double seconds = 0;   ///< of a step, the median of three
  double computing = 0; ///< of a stage, in seconds
  double bubble = 0;    ///< measured: (seconds - computing) / computing
  double formula = 0;
};
/// One stage a rank. A forward, backward and weights step of the whole stage sleep as long as `costs` say, in seconds.
/// Collective.
PipelineRow bench_pipeline(Transport& transport, PipelineKind kind, int micro_batches, int chunks,
                           const StepCosts& costs);

} // namespace triax
