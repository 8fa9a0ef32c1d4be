#include "kernels/compare.h"
#include "kernels/choice.h"
#include "kernels/elementwise.h"
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace triax {
namespace {

/// The bytes from a tensor's first element to its last, and its elements in them.
class Copy {
public:
  Copy(Backend& backend, const Tensor& tensor)
      : backend_(backend), tensor_(tensor), dense_(tensor.dense()), bytes_(size_t(tensor.extent())) {
    if (!bytes_.empty()) backend_.copy(uint64_t(bytes_.data()), tensor_.address, int64_t(bytes_.size()));
  }
  void restore() {
    if (!bytes_.empty()) backend_.copy(tensor_.address, uint64_t(bytes_.data()), int64_t(bytes_.size()));
  }
  double element(int64_t n) const {
    return number_at(tensor_.dtype, bytes_.data() + (dense_ ? n : tensor_.offset(n)) * bytes_of(tensor_.dtype));
  }

private:
  Backend& backend_;
  Tensor tensor_;
  bool dense_; ///< hundreds of millions of elements are looked at
  std::vector<std::byte> bytes_;
};

std::string place(const Tensor& t, int64_t n) {
  std::string text;
  for (int d = t.rank - 1; d >= 0; n /= t.dim[d--]) text = concat(n % t.dim[d], text.empty() ? "" : ", ", text);
  return concat("[", text, "]");
}

double most_difference(Dtype dtype) {
  return dtype == Dtype::bf16 ? kMostDifferenceBf16 : dtype == Dtype::f32 ? kMostDifferenceF32 : 0.0;
}

double compare(const Op& op, int operand, const std::string& name, const char* data, const Copy& reference,
               const Copy& chosen) {
  const Tensor& t = op[operand];
  double difference = 0, whole = 0, worst = -1;
  int64_t at = 0;
  for (int64_t n = 0; n < t.size(); ++n) {
    const double want = reference.element(n), got = chosen.element(n);
    if (want == got || (std::isnan(want) && std::isnan(got))) {
      whole += std::isfinite(want) ? want * want : 0;
      continue;
    }
    const double d = std::isfinite(want) && std::isfinite(got) ? std::abs(got - want) : INFINITY;
    difference += d * d;
    whole += std::isfinite(want) ? want * want : 0;
    if (d > worst) {
      worst = d;
      at = n;
    }
  }
  if (worst < 0) return 0;
  const double relative = std::sqrt(whole > 0 ? difference / whole : difference), most = most_difference(t.dtype);
  const double usual = std::sqrt(whole / double(t.size()));
  const bool element_fits = worst <= kMostOfElement * most * (std::abs(reference.element(at)) + usual);
  DEMAND(relative <= most && element_fits, "'", name, "' of ", op.kind->name, " differs from '", kReference, "' on ",
         data, ": operand ", operand, ", ", t.describe(), ", by ", relative, " of its norm, where ", most,
         " is allowed; at ", place(t, at), " it gives ", chosen.element(at), " instead of ", reference.element(at),
         " in ", op.describe(), "; set kernels.", family_of(*op.kind), "=", kReference, ", or mend it (make check)");
  return relative;
}

} // namespace

double compare_with_reference(Backend& backend, StreamId stream, const Op& op, const std::string& name, LaunchFn chosen,
                              LaunchFn reference, const Tensor& scratch, const char* data) {
  const auto written = [&] {
    std::vector<Copy> copies;
    backend.synchronize();
    for (int i = 0; i < op.operand_count; ++i)
      if (op.has(i) && op.operands[i].access != Access::read) copies.emplace_back(backend, op[i]);
    return copies;
  };
  std::vector<Copy> before = written();
  backend.launch(stream, reference, op, scratch);
  const std::vector<Copy> want = written();
  for (Copy& copy : before) copy.restore();
  before.clear();
  backend.launch(stream, chosen, op, scratch);
  const std::vector<Copy> got = written();
  double most = 0;
  size_t n = 0;
  for (int i = 0; i < op.operand_count; ++i)
    if (op.has(i) && op.operands[i].access != Access::read) {
      most = std::max(most, compare(op, i, name, data, want[n], got[n]));
      ++n;
    }
  return most;
}

void demand_launch(LaunchFn launch, const Target& target, const Op& op) {
  if (launch) return;
  const std::string chosen = chosen_implementation(*op.kind), name = implementation_of(target, op),
                    key = "kernels." + family_of(*op.kind);
  ENSURE(name != kReference, "operation ", op.kind->name, " has no implementation for ", target.name,
         " in this binary");
  DEMAND(chosen == kAutomatic, key, " is '", name, "', which this binary does not have for ", target.name,
         "; leave it out there");
  fail(concat(key, " is ", kAutomatic, ", which on ", target.name, " is '", name,
              "' for such a run, and this binary was built without it: set ", key, "=", kReference,
              ", or build one with it (scripts/setup cuda, then make cuda)"));
}

namespace {

std::map<std::string, RandomizeFn>& randomizers() {
  static std::map<std::string, RandomizeFn> all;
  return all;
}

bool is_read(const Op& op, int i) { return op.has(i) && op.operands[size_t(i)].access != Access::write; }

bool reads_floats_alone(const Op& op) {
  for (int i = 0; i < op.operand_count; ++i)
    if (is_read(op, i) && op[i].dtype != Dtype::f32 && op[i].dtype != Dtype::bf16) return false;
  return true;
}

/// Runs one operation, whose operands have no addresses yet.
double compare_on_random_data(Device& device, Backend& backend, const Signature& signature, LaunchFn chosen,
                              LaunchFn reference) {
  Op op = signature.op;
  std::vector<Allocation> memory;
  for (int i = 0; i < op.operand_count; ++i) {
    if (!op.has(i)) continue;
    Tensor& t = op.operands[size_t(i)].tensor;
    const Dtype dtype = t.dtype;
    memory.push_back(device.allocate("operand", Purpose::workspace, dtype, {t.extent() / bytes_of(dtype)}));
    const Tensor& all = memory.back(); // gaps between rows included
    t.address = all.address;
    if (is_read(op, i) && (dtype == Dtype::f32 || dtype == Dtype::bf16) && all.size() > 0)
      device.compute().run(normal_fill(all, 1.0f, 1, uint32_t(i), 0));
  }
  if (const auto own = randomizers().find(op.kind->name); own != randomizers().end()) own->second(device, op);
  Allocation scratch;
  if (const int64_t bytes = signature.description.scratch)
    scratch = device.allocate("workspace", Purpose::workspace, Dtype::u8, {bytes});
  return compare_with_reference(backend, StreamId::compute, op, implementation_of(device.target(), op), chosen,
                                reference, *scratch, "random data of this run's shapes");
}

} // namespace

RandomRegistration::RandomRegistration(const char* kind, RandomizeFn randomize) { randomizers()[kind] = randomize; }

std::vector<std::pair<Op, double>> compare_on_random_data(Device& device, Backend& backend, const Plan& plan) {
  std::vector<std::pair<Op, double>> all;
  std::set<uint64_t> done;
  for (const Program& program : plan.programs)
    for (const Instruction& at : program.instructions) {
      if (at.what != Instruction::What::op || at.stream != StreamId::compute) continue;
      const Signature& signature = program.signatures[size_t(at.index)];
      const Op& op = signature.op;
      const std::string name = implementation_of(device.target(), op);
      if (name == kReference || !done.insert(hash_of(op, at.stream, {})).second) continue;
      const LaunchFn chosen = find_launch(*op.kind, device.target().kind, name),
                     reference = find_launch(*op.kind, device.target().kind, kReference);
      demand_launch(chosen, device.target(), op);
      if (reference && (reads_floats_alone(op) || randomizers().count(op.kind->name)))
        all.emplace_back(op, compare_on_random_data(device, backend, signature, chosen, reference));
    }
  return all;
}

std::vector<std::string> Device::comparisons() const {
  std::vector<std::string> sentences;
  for (const auto& [key, choice] : choices_) {
    const auto& [kind, name] = key;
    if (name == kReference) continue;
    std::string on = choice.random_shapes ? "random data" : "";
    if (choice.compared) on += concat(on.empty() ? "" : " and on ", choice.compared, " launches");
    if (!choice.reference)
      sentences.push_back(
          concat(kind->name, ": '", name, "' is unchecked: there is no '", kReference, "' for ", target_.name));
    else if (!on.empty())
      sentences.push_back(concat(kind->name, ": '", name, "' agrees with '", kReference, "' on ", on, ", to ",
                                 choice.difference, " of the norm"));
  }
  std::sort(sentences.begin(), sentences.end());
  return sentences;
}

void Device::compare_choices(const Plan& plan) {
  for (const auto& [op, difference] : compare_on_random_data(*this, *backend_, plan)) {
    Choice& choice = choice_of(op);
    ++choice.random_shapes;
    choice.difference = std::max(choice.difference, difference);
  }
}

} // namespace triax
