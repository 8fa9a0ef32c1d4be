// What a configuration must hold together, each refusal with its arithmetic.
#include "kernels/check.h"
#include "model/sizes.h"
#include "train/config.h"
#include "train/settings.h"
#include <algorithm>

namespace triax {
namespace {

void validate_batch(const RunConfig& c) {
  const int64_t dp = c.mesh.dp, micro = micro_batch(c), global = c.train.global_batch;
  DEMAND(global % dp == 0, "train.global_batch is ", global, ", but must be a multiple of mesh.dp, which is ", dp, ": ",
         global, " = ", global / dp, " * ", dp, " + ", global % dp);
  DEMAND(global % (micro * dp) == 0, "train.global_batch is ", global,
         ", but must be a multiple of train.micro_batch * mesh.dp = ", micro, " * ", dp, " = ", micro * dp, ": ",
         global, " = ", global / (micro * dp), " * ", micro * dp, " + ", global % (micro * dp));
  if (c.train.repro) {
    DEMAND(kLanes % dp == 0, "train.repro sums in ", kLanes, " lanes, so mesh.dp, which is ", dp, ", must divide ",
           kLanes);
    DEMAND(global % kLanes == 0, "train.repro sums in ", kLanes, " lanes, so train.global_batch, which is ", global,
           ", must be a multiple of ", kLanes);
  }
  const int64_t parts = c.mesh.tp * (c.mesh.tp > 1 ? c.comm.tensor_chunks : 1),
                rows = micro * c.data.sequence / c.mesh.cp;
  DEMAND(rows % parts == 0, "a micro-batch has ", micro, " * ", c.data.sequence,
         c.mesh.cp > 1 ? concat(" / mesh.cp ", c.mesh.cp) : "", " = ", rows,
         " rows, but must be a multiple of mesh.tp * comm.tensor_chunks = ", parts);
  const double tokens = double(c.train.steps) * double(global) * double(c.data.sequence);
  DEMAND(tokens < 4e18, "train.steps * train.global_batch * data.sequence is ", tokens,
         " tokens: more than can be counted");
}

void validate_schedule(const RunConfig& c) {
  const OptimizerConfig& o = c.optimizer;
  DEMAND(o.min_lr <= o.lr, "optimizer.min_lr is ", o.min_lr, ", but must not exceed optimizer.lr, which is ", o.lr);
  DEMAND(o.warmup_steps <= c.train.steps, "optimizer.warmup_steps is ", o.warmup_steps,
         ", but must not exceed train.steps, which is ", c.train.steps);
  if (o.schedule == ScheduleKind::wsd)
    DEMAND(o.cooldown_steps <= c.train.steps - o.warmup_steps, "optimizer.warmup_steps ", o.warmup_steps,
           " + optimizer.cooldown_steps ", o.cooldown_steps, " = ", o.warmup_steps + o.cooldown_steps,
           ", but must not exceed train.steps, which is ", c.train.steps);
}

void validate_context(const RunConfig& c) {
  const int64_t cp = c.mesh.cp;
  if (cp == 1) return;
  const bool ring = c.context.exchange == ContextExchange::ring;
  const int64_t parts = ring ? 2 * cp : cp;
  DEMAND(c.data.sequence % parts == 0, "data.sequence is ", c.data.sequence, ", but must be a multiple of ",
         ring ? "2 * mesh.cp" : "mesh.cp", " = ", parts, ": each rank has ", ring ? "two chunks" : "a chunk",
         " of a sequence");
  DEMAND(!c.train.repro, "train.repro sums gradients sequence by sequence, which mesh.cp, ", cp,
         ", parts among ranks; set mesh.cp to 1");
  if (ring) return;
  const int64_t heads = c.model.heads / c.mesh.tp, kv_heads = std::max<int64_t>(1, c.model.kv_heads / c.mesh.tp);
  DEMAND(heads % cp == 0 && kv_heads % cp == 0, "context.exchange is all_to_all, which parts ", heads, " heads and ",
         kv_heads, " key/value heads", c.mesh.tp > 1 ? " of a tensor-parallel rank" : "", " among mesh.cp ", cp,
         " ranks, and ", heads % cp == 0 ? kv_heads : heads, " is no multiple of ", cp,
         "; choose ring, or another mesh.cp");
}

void validate_pipeline(const RunConfig& c) {
  const PipelineConfig& p = c.pipeline;
  DEMAND(p.schedule != PipelineKind::zero_bubble || !c.train.repro,
         "pipeline.schedule is zb-h1, which takes weights' gradients of a micro-batch apart, and train.repro sums them "
         "micro-batch by micro-batch; choose gpipe, 1f1b or interleaved");
  DEMAND(p.chunks == 1 || p.schedule == PipelineKind::interleaved, "pipeline.chunks is ", p.chunks,
         ", but only pipeline.schedule=interleaved has more than one");
  DEMAND(p.chunks == 1 || c.mesh.pp > 1, "pipeline.chunks is ", p.chunks, ", but mesh.pp is 1: there is no pipeline");
  split_layers(c.model.layers, int(c.mesh.pp), int(p.chunks), p.layout);
}

} // namespace

void validate_mesh(const RunConfig& c, int64_t ranks) {
  DEMAND(c.mesh.pod == 1, "mesh.pod is ", c.mesh.pod,
         ", but only 1 is offered: only mesh.pp, mesh.dp, mesh.cp and mesh.tp may exceed 1");
  double product = 1;
  for (const auto& [name, size] :
       {std::pair{"pp", c.mesh.pp}, {"dp", c.mesh.dp}, {"cp", c.mesh.cp}, {"tp", c.mesh.tp}}) {
    DEMAND(size >= 1 && size <= kMostRanks, "mesh.", name, " is ", size, ", but must lie in 1 .. ", kMostRanks);
    product *= double(size);
  }
  DEMAND(product <= double(kMostRanks), "mesh.pp ", c.mesh.pp, " x mesh.dp ", c.mesh.dp, " x mesh.cp ", c.mesh.cp,
         " x mesh.tp ", c.mesh.tp, " is more than ", kMostRanks, " ranks");
  const MeshShape shape = mesh_shape(c);
  DEMAND(ranks == 0 || shape.ranks() == ranks, "mesh.dp is ", c.mesh.dp,
         c.mesh.tp > 1 ? concat(" and mesh.tp ", c.mesh.tp) : "",
         c.mesh.cp > 1 ? concat(" and mesh.cp ", c.mesh.cp) : "",
         c.mesh.pp > 1 ? concat(" and mesh.pp ", c.mesh.pp) : "", ", so ", shape.ranks(), " ranks are needed, but ",
         ranks, ranks == 1 ? " was" : " were", " started: mpirun -n ", shape.ranks(), ", or leave mesh.dp out");
  Mesh(shape, 0, int(shape.ranks())); // order and zero.group
  DEMAND(c.zero.stage > 0 || c.zero.group == 0, "zero.group is ", c.zero.group,
         ", but zero.stage is 0: nothing is cut");
}

void validate(const RunConfig& config) {
  RunConfig copy = config;
  validate(config.model); // first: it tells a size that was not given, which is 0, from one outside its limits
  check_limits(settings(copy));
  DEMAND(!config.data.folder.empty(), "data.folder is not given: the token shards made by `triax data prepare`");
  DEMAND(!config.run.folder.empty(), "run.folder is \"\", but must name a folder");
  DEMAND(!config.checkpoint.resume.empty(), "checkpoint.resume is \"\", but must be auto, never, or a folder");
  DEMAND(config.data.sequence <= config.model.context, "data.sequence is ", config.data.sequence,
         ", but must not exceed model.context, which is ", config.model.context);
  validate_mesh(config, 0);
  validate_context(config);
  validate_batch(config);
  validate_pipeline(config);
  validate_schedule(config);
}

} // namespace triax
