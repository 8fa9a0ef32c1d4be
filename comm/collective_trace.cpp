#include "comm/collective_trace.h"
#include <algorithm>
#include <bit>
#include <map>

namespace triax {

RankGrid::RankGrid(const Mesh& mesh) : rank_at_(mesh.group(Axes((uint32_t(1) << kAxes) - 1))) {
  place_of_.resize(rank_at_.size());
  for (size_t place = 0; place < rank_at_.size(); ++place) place_of_[size_t(rank_at_[place])] = int(place);
  for (int a = 0; a < kAxes; ++a) {
    const std::vector<int> line = mesh.group({Axis(a)});
    size_[size_t(a)] = int(line.size());
    if (line.size() == 1) continue;
    stride_[size_t(a)] = place_of_[size_t(line[1])] - place_of_[size_t(line[0])];
    outermost_first_.push_back(Axis(a));
  }
  std::sort(outermost_first_.begin(), outermost_first_.end(),
            [&](Axis a, Axis b) { return stride_[size_t(a)] > stride_[size_t(b)]; });
}

Axes RankGrid::communicator(Axes axes) const {
  if (axes.is_link() || axes.is_ring()) return axes;
  uint32_t bits = 0;
  for (Axis axis : outermost_first_)
    if (axes.has(axis)) bits |= Axes{axis}.bits();
  return Axes(bits);
}

int RankGrid::size(Axes axes) const {
  if (axes.is_link()) return 2;
  int product = 1;
  for (Axis axis : outermost_first_)
    if (axes.has(axis)) product *= size_[size_t(axis)];
  return product;
}

int RankGrid::group_of(int rank, Axes axes) const {
  const int place = place_of_[size_t(rank)];
  if (axes.is_link()) { // a rank outside of the link is a group by itself
    const auto [first, next] = ends_of(rank, axes);
    return place == next ? first : place;
  }
  int first = place;
  for (Axis axis : outermost_first_)
    if (axes.has(axis)) first -= place / stride_[size_t(axis)] % size_[size_t(axis)] * stride_[size_t(axis)];
  return first;
}

std::pair<int, int> RankGrid::ends_of(int rank, Axes link) const {
  const int begin = group_of(rank, link.line()), count = size(link.line());
  const int stride = stride_[size_t(std::countr_zero(link.line().bits()))];
  return {begin + link.first() % count * stride, begin + (link.first() + 1) % count * stride};
}

std::vector<int> RankGrid::members(int rank, Axes axes) const {
  if (axes.is_link()) {
    const auto [first, next] = ends_of(rank, axes);
    const int from = rank_at_[size_t(first)], to = rank_at_[size_t(next)];
    if (rank != from && rank != to) return {rank};
    return axes.back() ? std::vector{to, from} : std::vector{from, to};
  }
  std::vector<int> places{group_of(rank, axes)};
  for (Axis axis : outermost_first_) {
    if (!axes.has(axis)) continue;
    std::vector<int> more;
    for (int place : places)
      for (int c = 0; c < size_[size_t(axis)]; ++c) more.push_back(place + c * stride_[size_t(axis)]);
    places = std::move(more);
  }
  for (int& place : places) place = rank_at_[size_t(place)];
  return places;
}

const Op& Trace::op(const TracedCollective& c) const {
  return program->signatures[size_t(program->instructions[size_t(c.instruction)].index)].op;
}

std::string Trace::describe(const TracedCollective& c) const {
  const int32_t place = program->instructions[size_t(c.instruction)].place;
  return concat("#", attributes(c).sequence, " ", op(c).describe(),
                place >= 0 ? " at " + program->places[size_t(place)] : std::string());
}

namespace {

using What = Instruction::What;

/// The kinds of communicators are numbered as they are met.
Trace trace_of_program(const Program& program, const RankGrid& grid, std::map<uint32_t, int32_t>& kinds) {
  Trace trace{&program, {}, {}, {}};
  std::vector<bool> collective(program.signatures.size());
  for (size_t s = 0; s < collective.size(); ++s) collective[s] = is_collective(*program.signatures[s].op.kind);
  for (size_t n = 0; n < program.instructions.size(); ++n) {
    const Instruction& at = program.instructions[n];
    std::vector<TracedStep>& queue = trace.queues[size_t(at.stream)];
    if (at.what == What::record) queue.push_back({TracedStep::What::record, at.index});
    if (at.what == What::wait) queue.push_back({TracedStep::What::wait, at.index});
    if (at.what != What::op || !collective[size_t(at.index)]) continue;
    const Axes axes(uint32_t(program.signatures[size_t(at.index)].op.get<CollectiveAttributes>().axes));
    const int32_t kind = kinds.emplace(grid.communicator(axes).bits(), int32_t(kinds.size())).first->second;
    trace.of_kind.resize(std::max(trace.of_kind.size(), size_t(kind) + 1));
    std::vector<int32_t>& alike = trace.of_kind[size_t(kind)];
    queue.push_back({TracedStep::What::collective, int32_t(trace.collectives.size())});
    alike.push_back(int32_t(trace.collectives.size()));
    trace.collectives.push_back({int32_t(n), kind, int32_t(alike.size()) - 1, at.stream});
  }
  return trace;
}

/// All that other ranks can notice of a trace: those of two programs are the same where this is.
std::vector<int64_t> content_of(const Trace& trace) {
  std::vector<int64_t> content;
  for (const std::vector<TracedStep>& queue : trace.queues) {
    content.push_back(int64_t(queue.size()));
    for (const TracedStep& step : queue) content.insert(content.end(), {int64_t(step.what), step.index});
  }
  for (const TracedCollective& c : trace.collectives) {
    const Op& op = trace.op(c);
    const CollectiveAttributes a = trace.attributes(c);
    content.insert(content.end(), {reinterpret_cast<int64_t>(op.kind), a.axes, a.sequence, a.size, op.operand_count});
    for (int i = 0; i < op.operand_count; ++i) content.insert(content.end(), {op[i].size(), int64_t(op[i].dtype)});
  }
  return content;
}

} // namespace

Traces::Traces(const Mesh& mesh, const std::vector<const Program*>& of_rank) : grid(mesh) {
  ENSURE(int(of_rank.size()) == grid.ranks(), "the programs of ", of_rank.size(), " ranks for a mesh of ",
         grid.ranks());
  std::map<const Program*, int> known;
  std::map<std::vector<int64_t>, int> contents;
  std::map<uint32_t, int32_t> numbers;
  for (const Program* program : of_rank) {
    const auto [at, is_new] = known.emplace(program, int(traces.size()));
    if (is_new) {
      Trace trace = trace_of_program(*program, grid, numbers);
      at->second = contents.emplace(content_of(trace), int(traces.size())).first->second;
      if (at->second == int(traces.size())) traces.push_back(std::move(trace));
    }
    trace_of.push_back(at->second);
  }
  kinds.resize(numbers.size(), Axes{});
  for (const auto& [bits, number] : numbers) kinds[size_t(number)] = Axes(bits);
  for (Trace& trace : traces) trace.of_kind.resize(kinds.size());
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> texts;
  for (int rank : ranks) texts.push_back(std::to_string(rank));
  return concat(ranks.size() == 1 ? "rank " : "ranks ", listed(texts, 4));
}

} // namespace triax
