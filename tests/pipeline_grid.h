// The schedules that the pipeline's tests go through, and their names and steps in short.
#pragma once
#include "kernels/check.h"
#include "train/pipeline.h"
#include <string>
#include <vector>

namespace triax::test {

inline constexpr PipelineKind kKinds[] = {PipelineKind::gpipe, PipelineKind::one_f_one_b, PipelineKind::interleaved,
                                          PipelineKind::zero_bubble};

inline std::string title_of(const PipelineSchedule& s) {
  return concat(name_of(s.kind), " of ", s.stages, " stages, ", s.micro_batches, " micro-batches, ", s.chunks,
                " chunks");
}

template <class F> void each_schedule(F&& f) {
  std::vector<int> micro_batches = {23, 64};
  for (int m = 1; m <= 16; ++m) micro_batches.push_back(m);
  for (const PipelineKind kind : kKinds)
    for (int chunks = 1; chunks <= (kind == PipelineKind::interleaved ? 4 : 1); ++chunks)
      for (int stages = 1; stages <= 16; ++stages)
        for (const int m : micro_batches) f(make_schedule(kind, stages, m, chunks));
}

/// "f0", "b0", "w0": kind of step and micro-batch; where there are several chunks, "f0.1" for chunk 1.
inline std::string said(const PipelineStep& step, int chunks) {
  const std::string text = concat("fbw"[int(step.what)], step.micro_batch);
  return chunks == 1 ? text : concat(text, ".", step.chunk);
}

} // namespace triax::test
