#include "train/pipeline.h"
#include "kernels/check.h"
#include <algorithm>
#include <iomanip>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>

namespace triax {
namespace {

using What = PipelineStep::What;
constexpr What kWhats[] = {What::forward, What::backward, What::weights};

/// A step and where it is done. The part of the model is counted over all stages: chunk c of stage s of p is c * p + s.
struct Place {
  int stage = 0;
  PipelineStep step;
};

int part_of(const PipelineSchedule& s, const Place& at) { return at.step.chunk * s.stages + at.stage; }

Place place_of(const PipelineSchedule& s, What what, int micro_batch, int part) {
  return {part % s.stages, {what, micro_batch, part / s.stages}};
}

const char* name_of(What what) {
  constexpr const char* kNames[] = {"forward", "backward", "weights"};
  return kNames[int(what)];
}

std::string said(const Place& at) {
  return concat("stage ", at.stage, ": the ", name_of(at.step.what), " step of micro-batch ", at.step.micro_batch,
                ", chunk ", at.step.chunk);
}

bool exists(const PipelineSchedule& s, const PipelineStep& step) {
  return step.micro_batch >= 0 && step.micro_batch < s.micro_batches && step.chunk >= 0 && step.chunk < s.chunks &&
         (step.what != What::weights || splits_backward(s.kind));
}

/// What a step waits for: of its own chunk, and of the part of the model before it (behind it, going backwards).
struct Needs {
  std::optional<Place> own, neighbour;
};

Needs needs_of(const PipelineSchedule& s, const Place& at) {
  const int part = part_of(s, at), last = s.stages * s.chunks - 1, micro_batch = at.step.micro_batch;
  Needs needs;
  switch (at.step.what) {
  case What::forward:
    if (part > 0) needs.neighbour = place_of(s, What::forward, micro_batch, part - 1);
    break;
  case What::backward:
    needs.own = place_of(s, What::forward, micro_batch, part);
    if (part < last) needs.neighbour = place_of(s, What::backward, micro_batch, part + 1);
    break;
  case What::weights:
    needs.own = place_of(s, What::backward, micro_batch, part);
    break;
  }
  return needs;
}

/// The steps of all stages, each as soon as it can; a stage that waits for ever has fewer begins than steps.
class Run {
public:
  std::vector<std::vector<double>> begin, end; ///< by stage and step

  Run(const PipelineSchedule& s, const StepCosts& costs)
      : begin(s.steps.size()), end(s.steps.size()), s_(s), costs_(costs) {
    ENSURE(s.steps.size() == size_t(s.stages), "steps for ", s.steps.size(), " stages of ", s.stages);
    ENSURE(costs.forward > 0 && costs.backward > 0 && costs.weights >= 0 && costs.transfer >= 0,
           "a step that takes no time, or a cost below 0");
    for (auto& ends : ends_) ends.assign(size_t(s.stages) * size_t(s.chunks) * size_t(s.micro_batches), kNever);
    for (bool moved = true; std::exchange(moved, false);)
      for (size_t stage = 0; stage < s.steps.size(); ++stage)
        while (begin[stage].size() < s.steps[stage].size() && advance(stage)) moved = true;
  }

  /// A sentence for each stage that waits for ever.
  std::vector<std::string> stuck() const {
    std::vector<std::string> sentences;
    for (size_t stage = 0; stage < begin.size(); ++stage) {
      if (begin[stage].size() == s_.steps[stage].size()) continue;
      const Place at{int(stage), s_.steps[stage][begin[stage].size()]};
      const Needs needs = needs_of(s_, at);
      for (const auto& need : {needs.own, needs.neighbour})
        if (need && when(need) == kNever) sentences.push_back(concat(said(at), " waits for ever for ", said(*need)));
    }
    return sentences;
  }

private:
  static constexpr double kNever = -1;

  size_t index(const Place& at) const {
    return size_t(part_of(s_, at)) * size_t(s_.micro_batches) + size_t(at.step.micro_batch);
  }

  double when(const std::optional<Place>& need) const {
    return need ? ends_[size_t(need->step.what)][index(*need)] : 0;
  }

  bool advance(size_t stage) {
    const Place at{int(stage), s_.steps[stage][begin[stage].size()]};
    ENSURE(exists(s_, at.step), said(at), " does not exist");
    const Needs needs = needs_of(s_, at);
    const double own = when(needs.own);
    double other = when(needs.neighbour);
    if (own == kNever || other == kNever) return false;
    if (needs.neighbour && needs.neighbour->stage != at.stage) other += costs_.transfer;
    begin[stage].push_back(std::max({own, other, end[stage].empty() ? 0 : end[stage].back()}));
    end[stage].push_back(begin[stage].back() + cost_of(s_.kind, at.step.what, costs_));
    ends_[size_t(at.step.what)][index(at)] = end[stage].back();
    return true;
  }

  const PipelineSchedule& s_;
  const StepCosts costs_;
  std::vector<double> ends_[std::size(kWhats)]; ///< by part of the model and micro-batch
};

/// What is wrong with the steps of one stage by themselves.
class StageCheck {
public:
  StageCheck(const PipelineSchedule& s, int stage, std::vector<std::string>& faults)
      : s_(s), stage_(stage), faults_(faults), highest_(std::size(kWhats) * size_t(s.chunks), -1),
        position_(highest_.size() * size_t(s.micro_batches), -1) {
    int position = 0;
    for (const PipelineStep& step : s.steps[size_t(stage)]) place(step, position++);
    for (const What what : kWhats)
      for (int chunk = 0; chunk < s.chunks; ++chunk)
        for (int micro_batch = 0; micro_batch < s.micro_batches; ++micro_batch) check({what, micro_batch, chunk});
  }

  /// Each step is there once, and none waits for a later one of this stage.
  bool can_run() const { return can_run_; }

private:
  void place(const PipelineStep& step, int position) {
    if (!exists(s_, step))
      return stop(step, concat(" does not exist in ", triax::name_of(s_.kind), " of ", s_.micro_batches,
                               " micro-batches and ", s_.chunks, " chunks"));
    if (position_of(step) >= 0) return stop(step, " stands there more than once");
    position_of(step) = position;
    int& highest = highest_[group_of(step)];
    if (step.micro_batch < highest)
      faults_.push_back(concat(said({stage_, step}), " stands behind that of micro-batch ", highest));
    highest = std::max(highest, step.micro_batch);
  }

  void check(const PipelineStep& step) {
    if (!exists(s_, step)) return;
    if (position_of(step) < 0) return stop(step, " is missing");
    const std::optional<Place> own = needs_of(s_, {stage_, step}).own;
    if (own && position_of(own->step) > position_of(step))
      stop(step, concat(" stands before its ", name_of(own->step.what), " step"));
  }

  void stop(const PipelineStep& step, const std::string& why) {
    faults_.push_back(said({stage_, step}) + why);
    can_run_ = false;
  }

  size_t group_of(const PipelineStep& step) const { return size_t(step.what) * size_t(s_.chunks) + size_t(step.chunk); }
  int& position_of(const PipelineStep& step) {
    return position_[group_of(step) * size_t(s_.micro_batches) + size_t(step.micro_batch)];
  }

  const PipelineSchedule& s_;
  int stage_;
  std::vector<std::string>& faults_;
  std::vector<int> highest_;  ///< micro-batch so far, by kind of step and chunk; -1 for none
  std::vector<int> position_; ///< in the list, by kind of step, chunk and micro-batch; -1 for none
  bool can_run_ = true;
};

int rounded_up(int n, int step) { return (n + step - 1) / step * step; }

/// The forward steps before a stage's first backward step, where there are so many micro-batches.
int warm_up_of(const PipelineSchedule& s, int stage) {
  const int behind = s.stages - stage - 1;
  return s.chunks == 1 ? behind : 2 * behind + (s.chunks - 1) * s.stages;
}

/// What leaves the stage behind a step: nothing at the ends of the model, nor where there is but one stage.
std::optional<PipelineTransfer> transfer_of(const PipelineSchedule& s, const Place& from) {
  const int part = part_of(s, from), last = s.stages * s.chunks - 1;
  const bool gradient = from.step.what == What::backward;
  if (s.stages == 1 || from.step.what == What::weights || part == (gradient ? 0 : last)) return {};
  const Place to = place_of(s, from.step.what, from.step.micro_batch, gradient ? part - 1 : part + 1);
  return PipelineTransfer{gradient, from.step.micro_batch, from.stage, to.stage, to.step.chunk};
}

std::string shortened(std::string line, int columns) {
  if (line.size() > size_t(columns)) {
    line.resize(size_t(columns));
    line.back() = '>';
  }
  return line;
}

} // namespace

std::span<const char* const> names(PipelineKind) {
  static constexpr const char* kNames[] = {"gpipe", "1f1b", "interleaved", "zb-h1"};
  return kNames;
}

const char* name_of(PipelineKind kind) { return names(kind)[size_t(kind)]; }

bool splits_backward(PipelineKind kind) { return kind == PipelineKind::zero_bubble; }

double cost_of(PipelineKind kind, What what, const StepCosts& costs) {
  if (what == What::forward) return costs.forward;
  if (what == What::weights) return costs.weights;
  return costs.backward + (splits_backward(kind) ? 0 : costs.weights);
}

Axes link_of(const PipelineTransfer& t) {
  return Axes::link(Axis::pp, t.gradient ? t.to_stage : t.from_stage, t.gradient);
}

PipelineSchedule make_schedule(PipelineKind kind, int stages, int micro_batches, int chunks) {
  DEMAND(stages >= 1, "mesh.pp is ", stages, "; a pipeline has at least 1 stage");
  DEMAND(micro_batches >= 1, "a step has ", micro_batches, " micro-batches; a pipeline needs at least 1");
  DEMAND(chunks >= 1, "pipeline.chunks is ", chunks, "; a stage has at least 1 chunk of layers");
  DEMAND(chunks == 1 || kind == PipelineKind::interleaved, "pipeline.chunks is ", chunks, ", but pipeline.schedule is ",
         name_of(kind), ", which has 1 chunk a stage; set pipeline.chunks to 1, or pipeline.schedule to ",
         name_of(PipelineKind::interleaved));
  PipelineSchedule s{kind, stages, micro_batches, chunks, std::vector<std::vector<PipelineStep>>(size_t(stages))};
  // Several chunks take turns after `stages` micro-batches each: as if there were a multiple of that, and what is too
  // many left out, which can make no stage wait longer.
  const int all = (chunks == 1 ? micro_batches : rounded_up(micro_batches, stages)) * chunks;
  for (int stage = 0; stage < stages; ++stage) {
    auto& steps = s.steps[size_t(stage)];
    const auto add = [&](What what, int n) {
      const int group = n / (stages * chunks), turn = n / stages % chunks;
      const int micro_batch = group * stages + n % stages;
      if (micro_batch < micro_batches)
        steps.push_back({what, micro_batch, what == What::forward ? turn : chunks - 1 - turn});
    };
    // ZB-H1 puts the weights off by as many steps as the stage has fewer in flight than the first: memory stays that
    // of 1F1B's first stage, and the last stage's gradient sets out early.
    const int put_off = stage;
    const auto backward = [&](int n) {
      add(What::backward, n);
      if (splits_backward(s.kind) && n >= put_off) add(What::weights, n - put_off);
    };
    const int warm_up = kind == PipelineKind::gpipe ? all : std::min(all, warm_up_of(s, stage));
    for (int n = 0; n < all; ++n) {
      add(What::forward, n);
      if (n >= warm_up) backward(n - warm_up);
    }
    for (int n = all - warm_up; n < all; ++n) backward(n);
    if (splits_backward(s.kind))
      for (int n = std::max(0, all - put_off); n < all; ++n) add(What::weights, n);
  }
  return s;
}

std::vector<std::string> schedule_faults(const PipelineSchedule& s) {
  if (s.stages < 1 || s.micro_batches < 1 || s.chunks < 1 || s.steps.size() != size_t(s.stages))
    return {concat("a schedule of ", s.stages, " stages, ", s.micro_batches, " micro-batches and ", s.chunks,
                   " chunks has steps for ", s.steps.size(), " stages")};
  std::vector<std::string> faults;
  bool can_run = true;
  for (int stage = 0; stage < s.stages; ++stage) can_run &= StageCheck(s, stage, faults).can_run();
  if (can_run) // otherwise all stages wait for what is named already
    for (const std::string& sentence : Run(s, {}).stuck()) faults.push_back(sentence);
  return faults;
}

ScheduleTiming time_schedule(const PipelineSchedule& s, const StepCosts& costs) {
  Run run(s, costs);
  const std::vector<std::string> stuck = run.stuck();
  ENSURE(stuck.empty(), "the schedule deadlocks: ", listed(stuck, 3));
  ScheduleTiming timing;
  double busiest = 0;
  for (size_t stage = 0; stage < s.steps.size(); ++stage) {
    double busy = 0;
    int in_flight = 0, most = 0;
    for (size_t i = 0; i < s.steps[stage].size(); ++i) {
      busy += run.end[stage][i] - run.begin[stage][i];
      const What what = s.steps[stage][i].what;
      if (what == What::forward) most = std::max(most, ++in_flight);
      if (what == (splits_backward(s.kind) ? What::weights : What::backward)) --in_flight;
    }
    timing.most_in_flight.push_back(most);
    if (!run.end[stage].empty()) timing.makespan = std::max(timing.makespan, run.end[stage].back());
    busiest = std::max(busiest, busy);
  }
  timing.bubble = busiest > 0 ? (timing.makespan - busiest) / busiest : 0;
  timing.begin = std::move(run.begin);
  return timing;
}

double bubble_formula(const PipelineSchedule& s, const StepCosts& costs) {
  const double share = double(s.stages - 1) / (double(s.micro_batches) * s.chunks);
  if (!splits_backward(s.kind)) return share;
  const double filled = std::min({costs.forward, costs.backward, costs.weights});
  return share * (costs.forward + costs.backward - filled) / (costs.forward + costs.backward + costs.weights);
}

InFlight in_flight_formula(const PipelineSchedule& s, int stage) {
  ENSURE(stage >= 0 && stage < s.stages, "stage ", stage, " of ", s.stages);
  const int all = s.micro_batches * s.chunks;
  switch (s.kind) {
  case PipelineKind::gpipe:
    return {all, true};
  case PipelineKind::one_f_one_b:
    return {std::min(all, s.stages - stage), true};
  case PipelineKind::interleaved:
    return {std::min(all, warm_up_of(s, stage) + 1), s.chunks == 1 || s.micro_batches % s.stages == 0};
  case PipelineKind::zero_bubble:
    return {std::min(all, s.stages), true};
  }
  ENSURE(false, "a schedule without a formula");
}

std::vector<PipelineAction> pipeline_actions(const PipelineSchedule& s, int stage) {
  ENSURE(stage >= 0 && stage < s.stages, "stage ", stage, " of ", s.stages);
  const StepCosts costs; // whole numbers, so that times compare exactly
  const Run run(s, costs);
  const std::vector<std::string> stuck = run.stuck();
  ENSURE(stuck.empty(), "the schedule deadlocks: ", listed(stuck, 3));

  // Steps and transfers of all stages have one order: by the time at which they end, a step before the transfers of
  // that time, these by the stage that they come from (which ends no two steps at once). Nothing waits for what is
  // later in it, so whatever comes first of all that is not done yet can be done.
  struct Timed {
    double time;
    int from; // -1 for a step
    PipelineAction action;
  };
  std::vector<Timed> timed;
  for (int from = 0; from < s.stages; ++from)
    for (size_t i = 0; i < s.steps[size_t(from)].size(); ++i) {
      const PipelineStep& step = s.steps[size_t(from)][i];
      const double time = run.end[size_t(from)][i];
      const auto transfer = transfer_of(s, {from, step});
      if (from == stage) timed.push_back({time, -1, {PipelineAction::What::compute, step, {}}});
      if (transfer && from == stage) timed.push_back({time, from, {PipelineAction::What::send, {}, *transfer}});
      if (transfer && transfer->to_stage == stage)
        timed.push_back({time, from, {PipelineAction::What::receive, {}, *transfer}});
    }
  std::sort(timed.begin(), timed.end(),
            [](const Timed& a, const Timed& b) { return std::tie(a.time, a.from) < std::tie(b.time, b.from); });
  std::vector<PipelineAction> actions;
  actions.reserve(timed.size());
  for (const Timed& t : timed) actions.push_back(t.action);
  return actions;
}

std::string draw(const PipelineSchedule& s, int columns) {
  ENSURE(columns >= 1, "a picture of ", columns, " columns");
  const ScheduleTiming timing = time_schedule(s);
  std::ostringstream title;
  title << name_of(s.kind) << ", " << s.stages << " stages, " << s.micro_batches << " micro-batches";
  if (s.chunks > 1) title << ", " << s.chunks << " chunks a stage";
  title << ", bubble " << std::fixed << std::setprecision(1) << 100 * timing.bubble << "%; 0-9 forward, a-j backward"
        << (splits_backward(s.kind) ? ", A-J weights" : "");
  std::string text = shortened(title.str(), columns) + "\n";
  for (int stage = 0; stage < s.stages; ++stage) {
    const auto& steps = s.steps[size_t(stage)];
    const auto& begin = timing.begin[size_t(stage)];
    std::string row(size_t(timing.makespan), '.');
    for (size_t i = 0; i < steps.size(); ++i) {
      const What what = steps[i].what;
      const size_t width = what == What::backward && !splits_backward(s.kind) ? 2 : 1; // at the default costs
      const char first = what == What::forward ? '0' : what == What::backward ? 'a' : 'A';
      row.replace(size_t(begin[i]), width, width, char(first + steps[i].micro_batch % 10));
    }
    std::ostringstream line;
    line << "stage " << std::setw(s.stages > 10 ? 2 : 1) << stage << " " << row;
    text += shortened(line.str(), columns) + "\n";
  }
  return text;
}

} // namespace triax
