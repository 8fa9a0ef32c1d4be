#include "kernels/device.h"
#include "kernels/choice.h"
#include "kernels/compare.h"
#include "kernels/place.h"
#include <algorithm>
#include <utility>

namespace triax {

std::unique_ptr<Backend> (*make_cuda_backend)(const Target&) = nullptr;
std::string (*detect_cuda)() = nullptr;
uint64_t (*gpu_identity)() = nullptr;

Target best_target() {
  const std::string gpu = detect_cuda ? detect_cuda() : std::string();
  return Target::parse(gpu.empty() ? "cpu" : gpu);
}

namespace {

using What = Instruction::What;

/// A ghost's addresses have nothing behind them; persistent and transient ones lie far apart.
constexpr uint64_t kGhostPersistent = uint64_t(1) << 44;
constexpr uint64_t kGhostTransient = uint64_t(1) << 52;

bool same(const Tensor& a, const Tensor& b) {
  return a.address == b.address && a.dim == b.dim && a.stride == b.stride && a.rank == b.rank && a.dtype == b.dtype &&
         a.space == b.space;
}

bool same(const Op& a, const Op& b) {
  bool equal = a.kind == b.kind && a.operand_count == b.operand_count && a.attributes == b.attributes;
  for (int i = 0; equal && i < a.operand_count; ++i)
    equal = a.operands[i].access == b.operands[i].access && same(a[i], b[i]);
  return equal;
}

} // namespace

std::string text_of(const Place& place) {
  const std::string file = place.file_name();
  const size_t name = file.rfind('/'), folder = name == std::string::npos ? name : file.rfind('/', name - 1);
  return concat(folder == std::string::npos ? file : file.substr(folder + 1), ":", place.line());
}

void Stream::run(const Op& op, const Place& place) { device_->run(id_, op, place); }

Allocation::Allocation(Allocation&& other) noexcept : device_(other.device_), tensor_(other.tensor_), id_(other.id_) {
  other.device_ = nullptr;
}

Allocation& Allocation::operator=(Allocation&& other) noexcept {
  const Allocation old(std::move(*this)); // released as at the end of a scope: nothing can be thrown here
  device_ = std::exchange(other.device_, nullptr);
  tensor_ = other.tensor_;
  id_ = other.id_;
  return *this;
}

Allocation::~Allocation() {
  Device* device = device_;
  try {
    release();
  } catch (...) { // with another error on its way, no release can follow the plan
    if (!std::uncaught_exceptions() && !device->violation_) device->violation_ = std::current_exception();
  }
}

void Allocation::release() {
  if (Device* device = std::exchange(device_, nullptr)) device->release(id_, tensor_);
}

std::unique_ptr<Device> Device::ghost(const Target& target, int threads) {
  set_compute_team(threads);
  std::unique_ptr<Device> device(new Device);
  device->target_ = target;
  for (int s = 0; s < kSpaces; ++s) device->base_[s] = kGhostPersistent * uint64_t(s + 1);
  return device;
}

std::unique_ptr<Device> Device::open(const Target& target, int threads) {
  std::unique_ptr<Device> device(new Device);
  device->target_ = target;
  if (target.kind == Target::Kind::cpu) {
    device->backend_ = make_host_backend(threads);
  } else {
    DEMAND(make_cuda_backend, "target ", target.name, " needs the CUDA binary: build it with `make cuda`");
    device->backend_ = make_cuda_backend(target);
  }
  return device;
}

Device::~Device() {
  if (!backend_) return;
  try {
    backend_->synchronize();
  } catch (const std::exception&) { // reported where the work was waited for, or never asked about
  }
  for (const Owned& o : owned_) backend_->deallocate(o.space, o.address, o.bytes);
}

Tensor Device::persistent(const std::string& name, Purpose purpose, Dtype dtype, std::initializer_list<int64_t> shape,
                          Space space) {
  ENSURE(!in_step_, "persistent ", name, " is allocated inside a step");
  Tensor t = Tensor::dense(0, space, dtype, shape);
  const int64_t bytes = aligned(std::max<int64_t>(t.bytes(), 1));
  if (plan_) {
    const size_t n = persistent_.size();
    ENSURE(n < plan_->persistent.size() && plan_->persistent[n].name == name && plan_->persistent[n].bytes == bytes,
           "persistent ", name, " of ", bytes, " bytes is not what the plan has next",
           n < plan_->persistent.size() ? concat(": ", plan_->persistent[n].name) : std::string());
  }
  if (backend_ && !plan_) {
    t.address = backend_->allocate(space, bytes);
    owned_.push_back({space, t.address, bytes});
    return t;
  }
  t.address = base_[int(space)] + uint64_t(persistent_bytes_[int(space)]);
  persistent_of_[int(space)].push_back(int32_t(persistent_.size()));
  persistent_.push_back({name, purpose, space, bytes, persistent_bytes_[int(space)]});
  persistent_bytes_[int(space)] += bytes;
  return t;
}

Allocation Device::allocate(const std::string& name, Purpose purpose, Dtype dtype,
                            std::initializer_list<int64_t> shape) {
  Tensor t = Tensor::dense(0, Space::device, dtype, shape);
  const int64_t bytes = aligned(std::max<int64_t>(t.bytes(), 1));
  if (backend_ && !plan_) {
    t.address = backend_->allocate(t.space, bytes);
    return {this, t, -1};
  }
  ENSURE(in_step_, name, " is allocated outside of a step");
  const int32_t id = buffers_++;
  if (backend_) {
    hold_to_plan(hash_of(What::allocate, StreamId::compute, bytes), name.c_str());
    t.address = base_[int(t.space)] + uint64_t(following_->buffers[id].offset);
  } else {
    const uint64_t last = ghost_addresses_.empty() ? kGhostTransient : ghost_addresses_.back();
    t.address = ghost_addresses_.empty() ? last : last + uint64_t(recording_->buffers.back().bytes);
    ghost_addresses_.push_back(t.address);
    live_.push_back(true);
    recording_->buffers.push_back({name, purpose, t.space, bytes, -1});
    recording_->instructions.push_back({What::allocate, StreamId::compute, id});
  }
  return {this, t, id};
}

void Device::release(int32_t id, const Tensor& tensor) {
  if (backend_ && !plan_) {
    backend_->synchronize();
    backend_->deallocate(tensor.space, tensor.address, aligned(std::max<int64_t>(tensor.bytes(), 1)));
    return;
  }
  if (!in_step_) return; // the step ended by an error
  if (backend_) return hold_to_plan(hash_of(What::release, StreamId::compute, id), "release");
  live_[id] = false;
  recording_->instructions.push_back({What::release, StreamId::compute, id});
}

void Device::begin(const std::string& kind, Ranks ranks) {
  ENSURE(!in_step_, "step ", kind, " begins inside another");
  in_step_ = true;
  issued_ = 0;
  events_ = buffers_ = 0;
  if (!backend_) {
    recording_ = std::make_unique<Program>();
    recording_->kind = kind;
    recording_->ranks_differ = ranks == Ranks::differ;
    signatures_.clear();
    places_.clear();
    ghost_addresses_.clear();
    live_.clear();
    return;
  }
  if (plan_) {
    following_ = plan_->find(kind);
    ENSURE(following_, "step ", kind, " was not planned");
  }
  backend_->fence();
}

void Device::end() {
  ENSURE(in_step_, "a step ends that did not begin");
  in_step_ = false;
  if (!backend_) {
    recording_->events = events_;
    recorded_.push_back(std::move(*recording_));
    recording_.reset();
    return;
  }
  throw_violation();
  ENSURE(!following_ || issued_ == following_->instructions.size(), "step ", following_->kind, " ended after ", issued_,
         " instructions; the plan goes on with ", following_->describe(issued_));
  following_ = nullptr;
  backend_->fence();
}

Plan Device::plan() const {
  ENSURE(!backend_, "only a ghost device has a plan to give");
  return pack(target_, persistent_, recorded_);
}

void Device::follow(const Plan& plan, int ranks_on_host) {
  ENSURE(backend_ && !plan_ && owned_.empty(), "a plan is followed from the start");
  ENSURE(plan.target == target_, "a plan for ", plan.target.name, " cannot be followed on ", target_.name);
  const auto demand = [&](Space space, int64_t bytes, int ranks) {
    const int64_t have = bytes ? backend_->available(space) : 0;
    DEMAND(bytes <= have / ranks, "not enough ", name_of(space), " memory: the plan needs ", bytes >> 20, " MiB",
           ranks > 1 ? concat(" for each of the ", ranks, " ranks on this host") : "", ", ", have >> 20,
           " MiB are available", ranks > 1 ? " to all; start fewer ranks here, or" : ";",
           " lower train.micro_batch, data.sequence or the model's size (`triax plan` shows what takes the memory)");
  };
  const bool cpu = target_.kind == Target::Kind::cpu; // all spaces are the host's there
  if (!cpu) demand(Space::device, plan.bytes[int(Space::device)], 1);
  demand(Space::host,
         plan.bytes[int(Space::host)] + plan.bytes[int(Space::pinned)] + (cpu ? plan.bytes[int(Space::device)] : 0),
         ranks_on_host);
  compare_choices(plan);
  plan_ = std::make_unique<Plan>(plan);
  for (int s = 0; s < kSpaces; ++s) {
    if (plan.bytes[s] == 0) continue;
    base_[s] = backend_->allocate(Space(s), plan.bytes[s]);
    owned_.push_back({Space(s), base_[s], plan.bytes[s]});
  }
}

void Device::throw_violation() {
  if (violation_) std::rethrow_exception(std::exchange(violation_, nullptr));
}

void Device::hold_to_plan(uint64_t hash, const char* what, const Op* op) {
  throw_violation();
  const size_t n = issued_++;
  if (n < following_->hashes.size() && following_->hashes[n] == hash) return;
  fail(concat("this rank leaves its plan: step ", following_->kind, ", instruction ", n, ": planned ",
              n < following_->instructions.size() ? following_->describe(n) : "nothing more", ", issued ",
              op ? op->describe() : what,
              " [a fault of triax: the issued step must not depend on data or on the rank]"));
}

Reference Device::locate(const Tensor& t, const Op& op) const {
  const uint64_t end = t.address + uint64_t(t.extent());
  if (t.address >= kGhostTransient) {
    const auto after = std::upper_bound(ghost_addresses_.begin(), ghost_addresses_.end(), t.address);
    ENSURE(after != ghost_addresses_.begin(), op.describe(), " touches memory that was never allocated");
    const int32_t id = int32_t(after - ghost_addresses_.begin()) - 1;
    const Buffer& buffer = recording_->buffers[id];
    ENSURE(live_[id], op.describe(), " uses ", buffer.name, " after its release");
    ENSURE(end <= ghost_addresses_[id] + uint64_t(buffer.bytes), op.describe(), " reaches past the end of ",
           buffer.name);
    return {id, int64_t(t.address - ghost_addresses_[id])};
  }
  const std::vector<int32_t>& buffers = persistent_of_[int(t.space)];
  const int64_t at = int64_t(t.address - base_[int(t.space)]);
  const auto after =
      std::partition_point(buffers.begin(), buffers.end(), [&](int32_t n) { return persistent_[n].offset <= at; });
  if (after != buffers.begin() && at < persistent_bytes_[int(t.space)]) {
    const int32_t n = *(after - 1);
    const Buffer& buffer = persistent_[n];
    ENSURE(end <= base_[int(t.space)] + uint64_t(buffer.offset + buffer.bytes), op.describe(),
           " reaches past the end of ", buffer.name);
    return {~n, at - buffer.offset};
  }
  fail(concat(op.describe(), " touches ", t.describe(), ", which is in no buffer of this device"));
}

int32_t Device::signature_of(const Op& op) {
  Op bare = op;
  bare.handle = nullptr;
  for (Operand& operand : bare.operands) operand.tensor.address = 0;
  const uint64_t hash = hash_of(bare, StreamId::compute, {});
  std::vector<Signature>& known = recording_->signatures;
  const auto [begin, end] = signatures_.equal_range(hash);
  const auto at = std::find_if(begin, end, [&](const auto& entry) { return same(known[entry.second].op, bare); });
  if (at != end) return at->second;
  known.push_back({bare, describe(target_, op)});
  return signatures_.emplace(hash, int32_t(known.size()) - 1)->second;
}

void Device::record_op(StreamId stream, const Op& op, const Place& place) {
  ENSURE(in_step_, op.describe(), " is issued outside of a step");
  Instruction at{What::op, stream, signature_of(op)};
  Allocation scratch;
  if (const int64_t bytes = recording_->signatures[at.index].description.scratch) {
    scratch = allocate(concat("workspace of ", op.kind->name), Purpose::workspace, Dtype::u8, {bytes});
    at.scratch = buffers_ - 1;
  }
  at.reference = int32_t(recording_->references.size());
  for (int i = 0; i < op.operand_count; ++i)
    recording_->references.push_back(op.has(i) ? locate(op[i], op) : Reference{});
  const auto [known, is_new] = places_.try_emplace(text_of(place), int32_t(recording_->places.size()));
  if (is_new) recording_->places.push_back(known->first);
  at.place = known->second;
  recording_->instructions.push_back(at);
}

int64_t Device::scratch_of(const Op& op) const {
  if (following_) { // as planned; whether this is the planned operation is checked before it runs
    for (size_t n = issued_; n < following_->instructions.size() && n <= issued_ + 1; ++n)
      if (const Instruction& at = following_->instructions[n]; at.what == What::op)
        return following_->signatures[at.index].description.scratch;
  }
  return describe(target_, op).scratch;
}

Device::Choice& Device::choice_of(const Op& op) {
  const std::string name = implementation_of(target_, op);
  Choice& choice = choices_[{op.kind, name}];
  if (choice.launch) return choice;
  const LaunchFn launch = find_launch(*op.kind, target_.kind, name);
  demand_launch(launch, target_, op);
  choice.launch = launch;
  if (name != kReference) choice.reference = find_launch(*op.kind, target_.kind, kReference);
  return choice;
}

Device::Choice& Device::planned_choice(const Op& op) {
  const Instruction& issued = following_->instructions[issued_ - 1];
  Choice*& choice = planned_choices_[&following_->signatures[size_t(issued.index)]];
  if (!choice) choice = &choice_of(op);
  return *choice;
}

void Device::run(StreamId stream, const Op& op, const Place& place) {
  if (!backend_) return record_op(stream, op, place);
  throw_violation();
  ENSURE(in_step_ || !plan_, op.describe(), " is issued outside of a step");
  Allocation scratch;
  if (const int64_t bytes = scratch_of(op)) scratch = allocate("workspace", Purpose::workspace, Dtype::u8, {bytes});
  if (following_) hold_to_plan(hash_of(op, stream, base_), op.kind->name, &op);
  Choice& choice = following_ ? planned_choice(op) : choice_of(op);
  if (!plan_ || !choice.reference || choice.compared == kComparedLaunches)
    return backend_->launch(stream, choice.launch, op, *scratch);
  ++choice.compared;
  choice.difference =
      std::max(choice.difference, compare_with_reference(*backend_, stream, op, implementation_of(target_, op),
                                                         choice.launch, choice.reference, *scratch));
}

std::function<void()> Device::prepare(const Op& op) {
  ENSURE(backend_ && !plan_, op.describe(), " is prepared on a device that follows a plan");
  const int64_t bytes = describe(target_, op).scratch;
  const Tensor scratch = bytes ? persistent("workspace", Purpose::workspace, Dtype::u8, {bytes}) : Tensor{};
  return
      [this, op, scratch, launch = choice_of(op).launch] { backend_->launch(StreamId::compute, launch, op, scratch); };
}

Event Stream::record() {
  Device& d = *device_;
  const Event event{d.events_++};
  if (d.recording_) d.recording_->instructions.push_back({What::record, id_, event.id});
  if (d.following_) d.hold_to_plan(hash_of(What::record, id_, event.id), "record");
  if (d.backend_) d.backend_->record(id_, event.id);
  return event;
}

void Stream::wait(Event event) {
  Device& d = *device_;
  ENSURE(event.id >= 0 && event.id < d.events_, "a stream waits for an event that was not recorded in this step");
  if (d.recording_) d.recording_->instructions.push_back({What::wait, id_, event.id});
  if (d.following_) d.hold_to_plan(hash_of(What::wait, id_, event.id), "wait");
  if (d.backend_) d.backend_->wait(id_, event.id);
}

void Device::write(const Tensor& t, const void* from) {
  ENSURE(t.dense(), "only dense tensors are written from the host");
  if (!backend_) return;
  synchronize();
  backend_->copy(t.address, reinterpret_cast<uint64_t>(from), t.bytes());
}

void Device::read(const Tensor& t, void* to) {
  ENSURE(t.dense(), "only dense tensors are read by the host");
  if (!backend_) return;
  synchronize();
  backend_->copy(reinterpret_cast<uint64_t>(to), t.address, t.bytes());
}

Device::Bytes Device::arena() const {
  if (!plan_) return {};
  return {base_[size_t(Space::device)], plan_->bytes[size_t(Space::device)]};
}

void Device::synchronize() {
  if (backend_) backend_->synchronize();
  throw_violation();
}

} // namespace triax
