#include "train/capture_compare.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace triax {
namespace {

/// Numbers in their order: neighbours of the type are 1 apart.
double place_of(float value, Dtype dtype) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const double magnitude = double(bits & 0x7fffffffu) / (dtype == Dtype::bf16 ? 65536 : 1);
  return bits >> 31 ? -1 - magnitude : magnitude;
}

double ulps_between(float a, float b, Dtype dtype) {
  if (std::isnan(a) || std::isnan(b))
    return std::isnan(a) && std::isnan(b) ? 0 : std::numeric_limits<double>::infinity();
  return std::abs(place_of(a, dtype) - place_of(b, dtype));
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

} // namespace

bool ValueDifference::exceeds(double within) const {
  if (elements == 0) return false;
  return !(within > 0 && relative <= within); // a relative norm of NaN exceeds everything
}

ValueDifference compare_values(const std::vector<float>& a, const std::vector<float>& b, Dtype dtype) {
  ENSURE(a.size() == b.size(), "tensors of ", a.size(), " and ", b.size(), " elements are compared");
  ValueDifference d;
  double squares = 0, difference = 0;
  std::vector<double> all_ulps;
  for (size_t i = 0; i < a.size(); ++i) {
    squares += double(a[i]) * double(a[i]);
    if (std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i])) continue;
    difference += (double(b[i]) - double(a[i])) * (double(b[i]) - double(a[i]));
    const double ulps = ulps_between(a[i], b[i], dtype);
    all_ulps.push_back(ulps);
    if (d.at >= 0 && ulps <= d.ulps) continue;
    d.ulps = ulps, d.at = int64_t(i), d.a = a[i], d.b = b[i];
  }
  d.elements = int64_t(all_ulps.size());
  d.median_ulps = median_of(std::move(all_ulps));
  if (difference != 0) d.relative = std::sqrt(difference) / std::sqrt(squares);
  return d;
}

CaptureComparison compare_captures(const CapturedRun& a, const CapturedRun& b, double within) {
  CaptureComparison c;
  const auto demand_same = [&](size_t i) {
    const auto text = [&](const CapturedRun& run) {
      return i < run.tensors().size() ? run.tensors()[i].describe() : std::string("nothing more");
    };
    DEMAND(text(a) == text(b), "A has ", text(a), " where B has ", text(b),
           ": the two did not run the same steps; give both the same checkpoint.resume and checkpoint.initial");
  };
  for (size_t i = 0; i < a.tensors().size(); ++i) {
    demand_same(i);
    const CapturedTensor& t = a.tensors()[i];
    const Dtype dtype = b.tensors()[i].dtype == Dtype::bf16 ? Dtype::bf16 : t.dtype;
    TensorDifference d{t, compare_values(a.values(i), b.values(i), dtype)};
    d.tensor.dtype = dtype;
    ++c.tensors;
    if (i == 0 || t.step != a.tensors()[i - 1].step) ++c.steps;
    if (d.values.elements == 0) ++c.equal;
    if (d.values.exceeds(within))
      c.differing.push_back(d);
    else if (d.values.elements > 0 && (c.largest.values.elements == 0 || d.values.relative > c.largest.values.relative))
      c.largest = d;
  }
  demand_same(a.tensors().size());
  return c;
}

} // namespace triax
