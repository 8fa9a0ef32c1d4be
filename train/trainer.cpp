#include "train/trainer.h"
#include "comm/collective_check.h"
#include "kernels/adamw.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "model/planted.h"
#include <algorithm>

namespace triax {
namespace {

constexpr int64_t kInputs = 3; ///< tokens, labels, order; behind them the document starts

int64_t micro_batches(const RunConfig& c, const Mesh& mesh) {
  return c.train.global_batch / (micro_batch(c) * mesh.size(kSampleAxes));
}

/// The layers of every chunk of the stage.
std::vector<LayerRange> chunks_of(const RunConfig& c, const Mesh& mesh) {
  const int stages = mesh.size(Axis::pp);
  const auto all = split_layers(c.model.layers, stages, int(c.pipeline.chunks), c.pipeline.layout);
  std::vector<LayerRange> own;
  for (size_t v = size_t(mesh.coordinate(Axis::pp)); v < all.size(); v += size_t(stages)) own.push_back(all[v]);
  return own;
}

/// One stage computes each micro-batch to its end, whatever the schedule.
PipelineKind schedule_kind(const RunConfig& c) {
  return c.mesh.pp == 1 ? PipelineKind::one_f_one_b : c.pipeline.schedule;
}

/// In `repro` a tied head is a copy on one stage too, so that its gradients are summed as on several.
Cut cut_of(const RunConfig& c, const Mesh& mesh) {
  return {mesh.size(kTensorAxes), mesh.size(Axis::copy), mesh.size(kDataAxes), chunks_of(c, mesh),
          c.model.tied && (c.train.repro || mesh.size(Axis::pp) > 1)};
}

int64_t lanes_of(const RunConfig& c, const Mesh& mesh) { return c.train.repro ? kLanes / mesh.size(kDataAxes) : 1; }

} // namespace

Trainer::Trainer(Device& device, Transport& transport, const Mesh& mesh, const RunConfig& config, Dtype dtype,
                 bool capture)
    : device_(device), config_(config), groups_(device, transport, mesh), table_(config.model, cut_of(config, mesh)),
      accumulation_(micro_batches(config, mesh)),
      rows_(micro_batch(config) * config.data.sequence / mesh.size(Axis::cp)),
      starts_(sees_whole_sequences() ? rows_ * mesh.size(Axis::cp) : rows_),
      shards_(groups_, table_, dtype,
              {ZeroStage(config.zero.stage), lanes_of(config, mesh), accumulation_, config.train.repro,
               config.comm.overlap}),
      owned_(table_.elements() / shards_.pieces()),
      master_(dtype == Dtype::f32 ? Tensor{} : floats("master weights", Purpose::master, owned_)),
      moment1_(floats("first moments", Purpose::optimizer, owned_)),
      moment2_(floats("second moments", Purpose::optimizer, owned_)),
      norm_blocks_(floats("norms of blocks", Purpose::gradients, owned_ / kNormBlock)),
      all_norm_blocks_(shards_.pieces() == 1
                           ? norm_blocks_
                           : floats("norms of all blocks", Purpose::gradients, table_.elements() / kNormBlock)),
      norm_totals_(floats("norms of units", Purpose::gradients, table_.all_units())),
      host_state_(device.persistent("host step state", Purpose::inputs, Dtype::u8, {sizeof(StepState)}, Space::pinned)),
      host_inputs_(device.persistent("host inputs", Purpose::inputs, Dtype::i32,
                                     {accumulation_, kInputs * rows_ + starts_}, Space::pinned)),
      host_scalars_(device.persistent("host scalars", Purpose::inputs, Dtype::f32, {kStepScalars}, Space::pinned)),
      state_(device.persistent("step state", Purpose::inputs, Dtype::u8, {sizeof(StepState)})),
      inputs_(device.persistent("inputs", Purpose::inputs, Dtype::i32, {accumulation_, kInputs * rows_ + starts_})),
      scalars_(device.persistent("scalars", Purpose::inputs, Dtype::f32, {shards_.lane_buffers(), kStepScalars})),
      context_(device, groups_.along(Axes::ring(Axis::cp)), config.context.exchange, state_),
      positions_(context_.positions(config.data.sequence / mesh.size(Axis::cp))),
      decoder_(device, config.model, table_, int64_t(positions_.size()), shards_,
               TensorParallel(device, groups_.along(kTensorAxes), config.comm.tensor_chunks, state_), context_) {
  decoder_.initialise();
  actions_ = pipeline_actions(schedule_of(config, mesh), mesh.coordinate(Axis::pp));
  for (const Axes axes : {kDataAxes, Axes{Axis::shard}, Axes{Axis::pp}}) groups_.along(axes); // now, not in a step
  groups_.make_links(Axis::pp);
  if (capture) {
    capture_ = std::make_unique<Capture>(device, accumulation_, decoder_.observed_bytes(rows_));
    decoder_.observe([this](const Observed& observed) { capture_->take(observed); });
  }
  if (device.is_ghost()) return;
  state() = StepState{};
  state().tensor_rank = mesh.index(kTensorAxes);
  state().shard_rank = int32_t(shards_.index());
  state().context_rank = mesh.coordinate(Axis::cp);
}

Tensor Trainer::floats(const char* name, Purpose purpose, int64_t n) const {
  return device_.persistent(name, purpose, Dtype::f32, {n});
}

Layout Trainer::layout() const {
  return {table_, groups_.mesh().index(kTensorAxes), shards_.pieces(), shards_.index()};
}

bool Trainer::is_first_owner() const {
  const Axes copies(kDataAxes.bits() & ~(shards_.pieces() > 1 ? Axes{Axis::shard} : Axes{}).bits());
  return groups_.mesh().index(copies) == 0;
}

void Trainer::initialise() {
  device_.begin("initialise", Device::Ranks::differ);
  Stream compute = device_.compute();
  const Tensor& target = master_.empty() ? weights() : master_;
  compute.run(fill(target, 0.0f));
  compute.run(fill(moment1_, 0.0f));
  compute.run(fill(moment2_, 0.0f));
  for (const Parameter& p : table_.rows())
    for (const Piece& piece : p.pieces) fill_piece(target, p, piece);
  if (!master_.empty()) compute.run(cast(weights(), master_));
  device_.end();
}

/// What this rank owns of a piece. An element's random number is that of its place in the whole parameter.
void Trainer::fill_piece(const Tensor& target, const Parameter& p, const Piece& piece) {
  const Layout l = layout();
  const OwnedRange owned(l, p);
  const int64_t begin = p.offset + piece.first * p.columns, columns = p.columns;
  const int64_t from = std::max(begin, owned.begin),
                to = std::min(begin + piece.rows_at(l.tensor_rank) * columns, owned.end);
  if (from >= to) return;
  const auto at = [&](int64_t first, int64_t end) {
    return target.slice(0, owned.at + first - owned.begin, end - first);
  };
  Stream compute = device_.compute();
  if (p.init_std <= 0) return compute.run(fill(at(from, to), p.init_constant));
  const auto number_of = [&](int64_t i) {
    const int64_t row = piece.first_of_all + piece.first_row_at(l.tensor_rank) + (i - begin) / columns;
    return row * piece.all_columns + p.first_column_at(l.tensor_rank) + (i - begin) % columns;
  };
  const auto fill_rows = [&](int64_t first, int64_t end, int64_t width) {
    if (first < end)
      compute.run(normal_fill(at(first, end).view({(end - first) / width, width}), p.init_std,
                              uint64_t(config_.train.seed), p.number, number_of(first), piece.all_columns));
  };
  if (columns == piece.all_columns) return fill_rows(from, to, to - from);
  // Where a piece of a shard begins or ends within a row: the row's end, whole rows, the last row's beginning.
  const int64_t whole = std::min(to, begin + (from - begin + columns - 1) / columns * columns);
  const int64_t last = std::max(whole, begin + (to - begin) / columns * columns);
  fill_rows(from, whole, whole - from);
  fill_rows(whole, last, columns);
  fill_rows(last, to, to - last);
}

void Trainer::train() {
  device_.begin("train");
  groups_.begin();
  shards_.begin_step();
  Stream compute = device_.compute();
  compute.run(copy(state_, host_state_));
  compute.run(copy(inputs_, host_inputs_));
  compute.run(fill(scalars_, 0.0f));
  if (!device_.is_ghost() && planted_deviation(mesh().rank(), state().step)) compute.run(fill(scalars_, 0.0f));
  if (!device_.is_ghost()) planted_sleep(mesh().rank(), state().step);
  sum_gradients();
  const Tensor sums = lane_scalars(shards_.lane_of(accumulation_ - 1).buffer);
  measure_norm(sums);
  const float capacity = float(config_.train.global_batch * config_.data.sequence);
  compute.run(finish_gradients(sums, capacity, float(config_.optimizer.clip)));
  update(sums);
  compute.run(copy(host_scalars_, sums));
  device_.end();
}

/// Gradients are taken of the sum of losses over the batch's capacity; finish_gradients turns that into the mean over
/// counted tokens.
void Trainer::sum_gradients() {
  Works works;
  if (capture_) capture_->begin_step();
  for (const PipelineAction& action : actions_) {
    if (action.what == PipelineAction::What::send)
      send(action.transfer, works);
    else if (action.what == PipelineAction::What::receive)
      receive(action.transfer, works[{action.transfer.micro_batch, action.transfer.chunk}]);
    else
      compute(action.step, works[{action.step.micro_batch, action.step.chunk}]);
  }
  shards_.finish_step();
  sum_tied();
  Collectives& data = groups_.along(kDataAxes);
  const Tensor losses =
      lane_scalars(shards_.lane_of(accumulation_ - 1).buffer).slice(0, kLossSum, 2); // and kTokenCount
  data.in_line([&] { data.all_reduce(losses); });
  sum_over_stages(losses);
}

void Trainer::compute(const PipelineStep& step, Work& work) {
  await(work);
  const LayerRange& range = table_.cut().chunks[size_t(step.chunk)];
  const Inputs in = device_inputs(step.micro_batch);
  if (capture_) capture_->at(step.micro_batch);
  if (step.what == PipelineStep::What::forward) return decoder_.forward(range, in, work.pass);
  if (step.what == PipelineStep::What::weights) return decoder_.finish_weights(range, work.pass);
  const float capacity = float(config_.train.global_batch * config_.data.sequence);
  const bool late = splits_backward(schedule_kind(config_));
  const Shards::Lane& lane = shards_.lane_of(step.micro_batch);
  const Tensor sums = lane_scalars(lane.buffer);
  if (range.head && lane.begins) device_.compute().run(fill(sums, 0.0f));
  decoder_.backward(range, in, work.pass, sums, 1 / capacity, late ? Decoder::Weights::late : Decoder::Weights::now);
  if (range.head && lane.ends)
    for (int64_t other : lane.merged) device_.compute().run(add(sums, lane_scalars(other), sums));
}

/// The transfer's chunk is the receiver's; behind the last stage comes the next chunk of the first.
void Trainer::send(const PipelineTransfer& t, Works& works) {
  const int stages = mesh().size(Axis::pp);
  const int chunk = t.gradient ? t.chunk + (t.to_stage == stages - 1) : t.chunk - (t.from_stage == stages - 1);
  const auto work = works.find({t.micro_batch, chunk});
  Allocation& sent = t.gradient ? work->second.pass.gradient : work->second.pass.leaving;
  Collectives& link = groups_.along(link_of(t));
  link.follow_compute();
  link.send(sent);
  sent.release();
}

void Trainer::receive(const PipelineTransfer& t, Work& work) {
  Allocation& to = t.gradient ? work.pass.gradient : work.pass.entering;
  to = decoder_.received(device_inputs(t.micro_batch), t.gradient ? "received gradient" : "received stream");
  Collectives& link = groups_.along(link_of(t));
  link.follow_compute(); // which used these bytes before
  link.receive(to);
  work.there = link.stream().record();
}

void Trainer::await(Work& work) {
  if (const Event there = std::exchange(work.there, {}); there.id >= 0) device_.compute().wait(there);
}

/// The gradients of a tied embedding and of its copy, as the head, become their sum on both.
void Trainer::sum_tied() {
  if (!table_.cut().head_copy) return;
  const int embedding = table_.unit_of(Role::embedding), head = table_.unit_of(Role::head);
  const int stages = mesh().size(Axis::pp);
  if (stages > 1) {
    if (embedding < 0 && head < 0) return;
    Collectives& ends = groups_.along(Axes::link(Axis::pp, stages - 1, false));
    ends.in_line([&] { ends.all_reduce(shards_.own_gradients(embedding < 0 ? head : embedding)); });
  } else {
    const Tensor sum = shards_.own_gradients(embedding), other = shards_.own_gradients(head);
    device_.compute().run(add(sum, other, sum));
    device_.compute().run(copy(other, sum));
  }
}

/// Of what one stage has and the others hold 0 for.
void Trainer::sum_over_stages(const Tensor& t) {
  Collectives& stages = groups_.along({Axis::pp});
  stages.in_line([&] { stages.all_reduce(t); });
}

/// Over fixed blocks in the order of the parameters, whoever owns them.
void Trainer::measure_norm(const Tensor& scalars) {
  Stream compute = device_.compute();
  const int64_t pieces = shards_.pieces();
  const Cut& cut = table_.cut();
  const auto blocks_of = [&](const Unit& unit) { return unit.elements / pieces / kNormBlock; };
  const auto first_of = [&](const Unit& unit) { return unit.begin / pieces / kNormBlock; };
  for (size_t u = 0; u < table_.units().size(); ++u) {
    const Unit& unit = table_.units()[u];
    compute.run(squared_norm(norm_blocks_.slice(0, first_of(unit), blocks_of(unit)), shards_.own_gradients(int(u)),
                             state_, {unit.copied_from, cut.copies, unit.whole_from, cut.tensor}));
  }
  if (pieces > 1) {
    Collectives& shard = groups_.along({Axis::shard});
    shard.in_line([&] { shard.all_gather(all_norm_blocks_, norm_blocks_); });
  }
  compute.run(fill(norm_totals_, 0.0f));
  for (const Unit& unit : table_.units())
    if (!unit.is_copy)
      compute.run(
          norm_total(norm_totals_.slice(0, unit.number, 1),
                     all_norm_blocks_.view({pieces, owned_ / kNormBlock}).slice(1, first_of(unit), blocks_of(unit)),
                     unit.length / kNormBlock));
  Collectives& tensor = groups_.along(kTensorAxes);
  tensor.in_line([&] { tensor.all_reduce(norm_totals_); });
  sum_over_stages(norm_totals_);
  const int64_t units = table_.all_units();
  compute.run(norm_total(scalars.slice(0, kGradientNorm2, 1), norm_totals_.view({1, units}), units));
}

void Trainer::update(const Tensor& scalars) {
  const OptimizerConfig& o = config_.optimizer;
  for (size_t u = 0; u < table_.units().size(); ++u) {
    const Unit& unit = table_.units()[u];
    const auto piece = [&](const Tensor& owned) { return shards_.piece(owned, int(u)); };
    device_.compute().run(adamw({.beta1 = float(o.beta1),
                                 .beta2 = float(o.beta2),
                                 .eps = float(o.eps),
                                 .decay = float(o.weight_decay),
                                 .first = unit.canonical,
                                 .decay_to = unit.canonical + unit.decay_to,
                                 .shared_from = unit.canonical + unit.copied_from,
                                 .stochastic = o.stochastic_rounding,
                                 .weights = piece(weights()),
                                 .master = piece(master_),
                                 .moment1 = piece(moment1_),
                                 .moment2 = piece(moment2_),
                                 .gradient = shards_.own_gradients(int(u)),
                                 .state = state_,
                                 .scalars = scalars}));
  }
}

void Trainer::evaluate() {
  device_.begin("evaluate");
  groups_.begin();
  shards_.begin_step();
  Stream compute = device_.compute();
  const Tensor sums = lane_scalars(0);
  compute.run(copy(state_, host_state_));
  compute.run(copy(inputs_, host_inputs_));
  compute.run(fill(sums, 0.0f));
  evaluate_stages(sums);
  compute.run(copy(host_scalars_, sums));
  device_.end();
}

/// Chunk c of stage s is the (c stages + s)-th part of the model.
void Trainer::evaluate_stages(const Tensor& sums) {
  const int stages = mesh().size(Axis::pp), stage = mesh().coordinate(Axis::pp), chunks = int(config_.pipeline.chunks);
  const Inputs in = device_inputs(0);
  for (int c = 0; c < chunks; ++c) {
    Works works;
    Work& work = works[{0, c}];
    if (stage > 0 || c > 0) receive({false, 0, (stage + stages - 1) % stages, stage, c}, work);
    await(work);
    decoder_.evaluate(table_.cut().chunks[size_t(c)], in, work.pass, sums);
    const bool wraps = stage + 1 == stages;
    if (!wraps || c + 1 < chunks) send({false, 0, stage, (stage + 1) % stages, c + wraps}, works);
  }
}

void Trainer::record_all() {
  initialise();
  train();
  evaluate();
}

Tensor Trainer::lane_scalars(int64_t buffer) const { return scalars_.slice(0, buffer, 1).view({kStepScalars}); }

Inputs Trainer::device_inputs(int64_t m) const {
  const Tensor all = inputs_.slice(0, m, 1).view({kInputs * rows_ + starts_});
  const auto at = [&](int64_t i) { return all.slice(0, i * rows_, rows_); };
  const Tensor starts = all.slice(0, kInputs * rows_, starts_);
  return {micro_batch(config_), int64_t(positions_.size()), at(0), at(1), starts, at(2), config_.data.document_mask};
}

Trainer::HostInputs Trainer::inputs(int64_t m) const {
  int32_t* at = host_inputs_.data<int32_t>() + m * (kInputs * rows_ + starts_);
  return {at, at + rows_, at + 2 * rows_, at + 3 * rows_};
}

StepState& Trainer::state() const { return *host_state_.data<StepState>(); }

const float* Trainer::scalars() const {
  device_.synchronize();
  return host_scalars_.data<float>();
}

PipelineSchedule schedule_of(const RunConfig& c, const Mesh& mesh) {
  return make_schedule(schedule_kind(c), mesh.size(Axis::pp), int(micro_batches(c, mesh)), int(c.pipeline.chunks));
}

Dtype choose_dtype(DTypeChoice choice, const Target& target) {
  if (choice == DTypeChoice::f32) return Dtype::f32;
  if (choice == DTypeChoice::bf16 || target.kind == Target::Kind::cuda)
    return Dtype::bf16; // every target from sm_80 on has it
  return cpu_has_bf16() ? Dtype::bf16 : Dtype::f32;
}

Plan make_plan(const Target& target, int threads, const Mesh& mesh, const RunConfig& config, bool capture) {
  choose_kernels(config);
  const auto ghost = Device::ghost(target, threads);
  const auto transport = Transport::ghost(mesh.rank(), mesh.world());
  Trainer(*ghost, *transport, mesh, config, choose_dtype(config.train.dtype, target), capture).record_all();
  return ghost->plan();
}

std::vector<Plan> make_plans(const Target& target, int threads, const Mesh& mesh, const RunConfig& config,
                             bool capture) {
  const std::vector<int> stages = mesh.group({Axis::pp});
  const Axes others(((uint32_t(1) << kAxes) - 1) & ~Axes{Axis::pp}.bits());
  std::vector<Plan> plans(stages.size());
  std::vector<const Plan*> of_rank(size_t(mesh.world()));
  for (size_t s = 0; s < stages.size(); ++s) {
    const Mesh seen = mesh.of_rank(stages[s]);
    plans[s] = make_plan(target, threads, seen, config, capture);
    for (int rank : seen.group(others)) of_rank[size_t(rank)] = &plans[s];
  }
  for (const std::string& fault : collective_faults(mesh, of_rank)) fail(fault);
  return plans;
}

} // namespace triax
