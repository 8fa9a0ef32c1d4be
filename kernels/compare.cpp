#include "kernels/compare.h"
#include <cmath>

namespace triax {
namespace {

/// The bytes from a tensor's first element to its last, and its elements in them.
class Copy {
public:
  Copy(Backend& backend, const Tensor& tensor) : backend_(backend), tensor_(tensor), bytes_(size_t(tensor.extent())) {
    if (!bytes_.empty()) backend_.copy(uint64_t(bytes_.data()), tensor_.address, int64_t(bytes_.size()));
  }
  void restore() {
    if (!bytes_.empty()) backend_.copy(tensor_.address, uint64_t(bytes_.data()), int64_t(bytes_.size()));
  }
  double element(int64_t n) const {
    return number_at(tensor_.dtype, bytes_.data() + tensor_.offset(n) * bytes_of(tensor_.dtype));
  }

private:
  Backend& backend_;
  Tensor tensor_;
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

double compare(const Op& op, int operand, const std::string& name, const Copy& reference, const Copy& chosen) {
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
  DEMAND(relative <= most && element_fits, "'", name, "' of ", op.kind->name, " differs from '", kReference,
         "' on this run's tensors: ", "operand ", operand, ", ", t.describe(), ", by ", relative,
         " of its norm, where ", most, " is allowed; at ", place(t, at), " it gives ", chosen.element(at),
         " instead of ", reference.element(at), " in ", op.describe(), "; leave kernels.", op.kind->name,
         " out, or mend it (make check)");
  return relative;
}

} // namespace

double compare_with_reference(Backend& backend, StreamId stream, const Op& op, const std::string& name, LaunchFn chosen,
                              LaunchFn reference, const Tensor& scratch) {
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
      most = std::max(most, compare(op, i, name, want[n], got[n]));
      ++n;
    }
  return most;
}

} // namespace triax
