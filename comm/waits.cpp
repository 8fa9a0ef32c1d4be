#include "comm/waits.h"
#include "comm/mpi_api.h"
#include "kernels/check.h"
#include "kernels/place.h"
#include "kernels/tensor.h"
#include <algorithm>
#include <cstring>
#include <numeric>

namespace triax {
namespace {

constexpr auto kAnswerTime = std::chrono::seconds(5);

/// FNV-1a of the ranks; 0 is the group of all.
uint64_t name_of(const std::vector<int>& ranks) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int rank : ranks) hash = (hash ^ uint64_t(uint32_t(rank))) * 0x100000001b3;
  return hash | 1;
}

/// "all_gather #12"
std::string text_of(const Waits::Place& p) {
  return concat(p.kind, " #", p.origin.sequence >= 0 ? p.origin.sequence : p.number);
}

/// "rank 3", "ranks 0, 1 and 2"
std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return concat("rank ", ranks[0]);
  std::vector<std::string> numbers;
  for (size_t i = 0; i + 1 < ranks.size(); ++i) numbers.push_back(std::to_string(ranks[i]));
  if (numbers.size() > 16) return concat("ranks ", listed(numbers, 16));
  return concat("ranks ", listed(numbers), " and ", ranks.back());
}

} // namespace

Waits::Waits(const MpiApi* mpi, int rank, int size) : mpi_(mpi), rank_(rank), size_(size) {
  std::vector<int> all(size_t(size), 0);
  std::iota(all.begin(), all.end(), 0);
  communicator_ = mpi_->communicator(all.data(), size);
  receive();
}

void Waits::finish() {
  mpi_->cancel(&receiving_);
  for (auto& sent : sent_) mpi_->cancel(&sent->request);
}

void Waits::receive() { receiving_ = mpi_->receive(&received_, sizeof received_, MpiApi::kAny, communicator_); }

void Waits::send(const Message& message, int to) {
  sent_.push_back(std::make_unique<Sent>(Sent{message, nullptr}));
  Sent& sent = *sent_.back();
  sent.request = mpi_->send(&sent.message, sizeof sent.message, to, communicator_);
}

Waits::Place* Waits::begin(const char* kind, const Group* group, const Origin& origin) {
  Place& p = places_[group ? group->communicator() : nullptr];
  const uint32_t axes = group ? group->axes().bits() : 0;
  if (p.number == 0 || p.axes != axes) { // the same ranks may have several names
    p.group = group ? group->describe() : concat("all ", size_, " ranks");
    p.axes = axes;
    p.name = group ? name_of(group->ranks()) : 0;
    p.ranks = group ? group->ranks() : std::vector<int>(size_t(size_));
    if (!group) std::iota(p.ranks.begin(), p.ranks.end(), 0);
  }
  p.kind = kind;
  p.origin = origin;
  ++p.number;
  p.open = true;
  p.since = Clock::now();
  return &p;
}

void Waits::forget_origins() {
  for (auto& [communicator, p] : places_) p.origin = {p.origin.sequence, nullptr, nullptr};
}

std::string Waits::look(std::chrono::seconds timeout, const char* long_work) {
  while (mpi_->test(&receiving_)) {
    const Message message = received_;
    receive();
    take(message, long_work);
  }
  std::erase_if(sent_, [this](auto& sent) { return mpi_->test(&sent->request); });
  if (question_ && (!question_->about->open || question_->about->number != question_->number)) question_.reset();
  if (question_) return conclude(timeout);
  const auto now = Clock::now();
  for (auto& [communicator, p] : places_) {
    if (!p.open || timeout.count() == 0 || now - p.since < timeout) continue;
    question_ = Question{&p, p.number, now, {}};
    for (int rank : p.ranks)
      if (rank != rank_) send({Message::What::question, rank_, p.name, p.number, {}}, rank);
    break;
  }
  return "";
}

void Waits::take(const Message& message, const char* long_work) {
  if (message.what == Message::What::question) {
    Message answer{
        long_work ? Message::What::long_work : Message::What::answer, rank_, message.group, message.number, {}};
    const std::string text = long_work ? long_work : whereabouts(message.group, message.number);
    std::memcpy(answer.text, text.data(), std::min(text.size(), sizeof answer.text - 1));
    return send(answer, message.rank);
  }
  if (!question_ || message.group != question_->about->name || message.number != question_->number) return; // too late
  if (message.what == Message::What::answer) {
    question_->answers[message.rank] = message.text;
    return;
  }
  for (auto& [communicator, p] : places_)
    if (&p == question_->about) p.since = Clock::now(); // it will be asked about again
  question_.reset();
}

/// What this rank is, to someone who waits in the operation of that number.
std::string Waits::whereabouts(uint64_t group, int64_t number) const {
  std::string elsewhere, here = "not yet in its first operation there";
  for (const auto& [communicator, p] : places_) {
    if (p.name != group) {
      if (p.open) elsewhere = concat(", in ", text_of(p), " of ", p.group);
      continue;
    }
    if (p.open && p.number == number) return "in it";
    if (p.open) return concat("at ", text_of(p));
    here = concat(p.number < number ? "only past " : "past ", text_of(p));
  }
  return concat(here, elsewhere.empty() ? ", waiting for nobody" : elsewhere);
}

std::string Waits::conclude(std::chrono::seconds timeout) {
  const Place& p = *question_->about;
  const bool all = question_->answers.size() + 1 == p.ranks.size();
  if (!all && Clock::now() - question_->asked < kAnswerTime) return "";
  std::map<std::string, std::vector<int>> ranks_of{{"in it", {}}}; // by what they are
  for (int rank : p.ranks) {
    const auto answer = question_->answers.find(rank);
    ranks_of[rank == rank_ ? "in it" : answer == question_->answers.end() ? "" : answer->second].push_back(rank);
  }
  std::vector<std::string> parts;
  const auto add = [&](const std::vector<int>& ranks, const std::string& one, const std::string& many) {
    if (!ranks.empty()) parts.push_back(concat(ranks_text(ranks), ranks.size() == 1 ? one : many));
  };
  add(ranks_of["in it"], " is in it", " are in it");
  for (const auto& [what, ranks] : ranks_of)
    if (what != "in it" && !what.empty()) add(ranks, " is " + what, " are " + what);
  add(ranks_of[""], " does not answer", " do not answer");
  question_.reset();
  return concat("rank ", rank_, " has waited ", timeout.count(), " s for ", text_of(p), " of ", p.group,
                p.origin.tensor ? concat(", ", p.origin.tensor->describe()) : "",
                p.origin.place ? concat(", ", triax::text_of(*p.origin.place)) : "", ": ", listed(parts),
                "; look at those that are not in it, or raise comm.timeout");
}

} // namespace triax
