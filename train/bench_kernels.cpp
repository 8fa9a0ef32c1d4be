#include "train/bench_kernels.h"
#include "kernels/compare.h"
#include "kernels/elementwise.h"
#include "kernels/floor.h"
#include <algorithm>
#include <cctype>
#include <chrono>
#include <map>
#include <set>

namespace triax {
namespace {

constexpr int kRounds = 9, kFewestRounds = 3;
constexpr double kLongest = 2; ///< seconds that a row's rounds may take where that leaves the fewest
constexpr double kRateAge = 2; ///< seconds after which the matrix rate is measured again
/// An implementation that uses no matrix units, "plain", is left out where it would take seconds.
constexpr double kMostPlainFlops = 1e11;

using Clock = std::chrono::steady_clock;

double least(const std::vector<double>& samples) { return *std::min_element(samples.begin(), samples.end()); }

/// The rates of the machine that are the best of the whole run: a disturbed one would flatter the kernels.
class Rates {
public:
  Rates(const BenchPlace& place, BenchSize size) : place_(place), size_(size) {}
  void measure_matrix(Dtype dtype) {
    Rate& rate = matrix_[dtype];
    if (rate.best > 0 && std::chrono::duration<double>(Clock::now() - rate.at).count() < kRateAge) return;
    rate.best = std::max(rate.best, matrix_rate_of(place_, dtype, size_));
    rate.at = Clock::now();
  }
  void saw_exponential(double seconds) { exponential_ = std::min(exponential_, seconds); }
  void finish(KernelRow& row) const {
    if (!row.error.empty() || row.unchecked) return;
    if (row.kind != KernelKind::rows) {
      row.matrix_rate = matrix_.at(row.dtype).best;
      row.percent = 100 * row.flops / row.seconds / row.matrix_rate;
      return;
    }
    row.exp_seconds = row.exponentials > 0 ? exponential_ * row.exponentials : 0;
    row.floor_seconds = std::max(row.copy_seconds, row.exp_seconds);
    row.percent = 100 * row.floor_seconds / row.seconds;
  }

private:
  struct Rate {
    double best = 0;
    Clock::time_point at;
  };
  BenchPlace place_;
  BenchSize size_;
  std::map<Dtype, Rate> matrix_;
  double exponential_ = 1;
};

/// A call and how often it is made for one sample.
struct Timed {
  BenchCase::Call call;
  int repeat;
  std::vector<double> seconds = {};
  Timed(BenchCase& c, const Op& op) : call(c.call(op)), repeat(c.repeats_of(call)) {}
  void sample(BenchCase& c) { seconds.push_back(c.seconds_of(call, repeat)); }
};

/// What row-wise kernels are held to on this place. A GPU copies by a kernel or by its own means, whichever is faster;
/// how fast it computes exponentials, the floor that a CPU has cannot tell: it would measure the cache.
class Floors {
public:
  Floors(BenchCase& c, const BenchPlace& place, double bytes) {
    const int64_t n = std::max<int64_t>(1, int64_t(bytes) / 8);
    const Tensor to = c.numbers(Dtype::f32, {n}), from = c.numbers(Dtype::f32, {n});
    copies_.emplace_back(c, floor_copy(to, from));
    if (place.gpu()) {
      copies_.emplace_back(c, copy(to, from));
      return;
    }
    const int64_t count = 2048 * place.threads, times = 200;
    exponentials_ = double(count * times);
    exp_.emplace_back(c, floor_exp(c.numbers(Dtype::f32, {count}), c.numbers(Dtype::f32, {count}), times));
  }
  void sample(BenchCase& c) {
    for (Timed& copy : copies_) copy.sample(c);
    for (Timed& exp : exp_) exp.sample(c);
  }
  void finish(KernelRow& row, Rates& rates) const {
    row.copy_seconds = least(copies_.front().seconds);
    for (const Timed& copy : copies_) row.copy_seconds = std::min(row.copy_seconds, least(copy.seconds));
    for (const Timed& exp : exp_) rates.saw_exponential(least(exp.seconds) / exponentials_);
  }

private:
  std::vector<Timed> copies_, exp_;
  double exponentials_ = 1;
};

/// How many rounds a row gets, from the seconds that one takes.
int rounds_of(double seconds) { return std::clamp(int(kLongest / seconds), kFewestRounds, kRounds); }

void time_rows(BenchCase& c, const Op& op, const BenchPlace& place, KernelRow& row, Rates& rates) {
  Timed kernel(c, op);
  Floors floors(c, place, row.bytes);
  for (int round = 0; round < kRounds; ++round) {
    kernel.sample(c);
    floors.sample(c);
  }
  row.seconds = median(kernel.seconds);
  floors.finish(row, rates);
}

void time_matrix(BenchCase& c, const Op& op, KernelRow& row, Rates& rates) {
  rates.measure_matrix(row.dtype);
  Timed kernel(c, op);
  kernel.sample(c);
  const int rounds = rounds_of(kernel.seconds.front() * kernel.repeat);
  while (int(kernel.seconds.size()) < rounds) kernel.sample(c);
  row.seconds = median(kernel.seconds);
  rates.measure_matrix(row.dtype);
}

class Bench {
public:
  explicit Bench(const KernelOptions& options) : o_(options), rates_(options.place, options.size) {}

  std::vector<KernelCase> cases() const {
    std::vector<KernelCase> chosen;
    std::set<std::string> names;
    for (const Dtype dtype : {Dtype::bf16, Dtype::f32})
      for (const auto& kind : {row_wise_cases, attention_cases, product_cases})
        for (KernelCase& k : kind(o_.place, dtype, o_.size)) {
          names.insert(k.name);
          if ((!o_.dtype || *o_.dtype == dtype) && (!o_.kind || *o_.kind == k.kind) &&
              matches(k.name + " " + k.shape, o_.name))
            chosen.push_back(std::move(k));
        }
    DEMAND(!chosen.empty(), "bench kernels: none that was asked for has '", o_.name, "' in its name; there are ",
           listed(names));
    return chosen;
  }

  /// All implementations of one kernel, the reference first.
  void run(const KernelCase& k) {
    const OpKind* kind = measure(k, nullptr, kReference);
    if (!kind) return;
    const double flops = rows_.back().flops;
    for (const std::string& name : implementations(*kind)) {
      if (name == kReference) continue;
      if (!find_launch(*kind, o_.place.target.kind, name)) {
        note_unchecked(k, *kind, name);
        continue;
      }
      if (name == "plain" && flops > kMostPlainFlops) continue;
      if (takes(k, *kind, name, o_.place.target)) measure(k, kind, name);
    }
  }

  std::vector<KernelRow> finished() const {
    std::vector<KernelRow> rows = rows_;
    for (KernelRow& row : rows) rates_.finish(row);
    return rows;
  }

private:
  KernelRow row_of(const KernelCase& k, const std::string& implementation) const {
    KernelRow row;
    row.kind = k.kind;
    row.name = k.name;
    row.implementation = implementation;
    row.shape = k.shape;
    row.dtype = k.dtype;
    row.exponentials = o_.place.gpu() ? 0 : k.exponentials;
    row.allowed = k.dtype == Dtype::bf16 ? kMostDifferenceBf16 : kMostDifferenceF32;
    return row;
  }

  /// Does the implementation take such operands on the target, and if so, can anybody see inside of it?
  bool takes(const KernelCase& k, const OpKind& kind, const std::string& implementation, const Target& target,
             bool* trusted = nullptr) const {
    BenchCase c(o_.place, k.dtype);
    const Op op = (k.small ? k.small : k.make)(c);
    const ImplementationScope scope(kind, implementation);
    try {
      const Description d = describe(target, op);
      if (trusted) *trusted = d.trusted;
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  /// What no CPU can run, nor the tests' emulation, has its row.
  void note_unchecked(const KernelCase& k, const OpKind& kind, const std::string& name) {
    bool trusted = false;
    if (o_.place.gpu() || !takes(k, kind, name, Target::parse("sm_90a"), &trusted) || !trusted) return;
    KernelRow row = row_of(k, name);
    row.shape = "any";
    row.unchecked = true;
    for (const KernelRow& r : rows_)
      if (r.unchecked && r.name == row.name && r.implementation == name && r.dtype == row.dtype) return;
    rows_.push_back(row);
  }

  /// Adds the row of one implementation of `kind`, which is null where it is not known before; returns it.
  const OpKind* measure(const KernelCase& k, const OpKind* kind, const std::string& implementation) {
    KernelRow row = row_of(k, implementation);
    std::optional<ImplementationScope> scope;
    if (kind) scope.emplace(*kind, implementation);
    try {
      if (o_.check) {
        BenchCase small(o_.place, k.dtype);
        row.difference = difference_from_cpu(small, (k.small ? k.small : k.make)(small), o_.place.threads);
      }
      BenchCase c(o_.place, k.dtype);
      const Op op = k.make(c);
      const Description d = describe(o_.place.target, op);
      row.flops = d.flops;
      row.bytes = d.bytes;
      if (k.kind == KernelKind::rows)
        time_rows(c, op, o_.place, row, rates_);
      else
        time_matrix(c, op, row, rates_);
      rows_.push_back(row);
      if (!kind) return op.kind;
    } catch (const std::exception& e) {
      row.error = e.what();
      rows_.push_back(row);
    }
    return kind;
  }

  KernelOptions o_;
  Rates rates_;
  std::vector<KernelRow> rows_;
};

std::string plain(const std::string& text) {
  std::string letters;
  for (const char c : text)
    if (c != ' ' && c != '_') letters += char(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

} // namespace

const char* name_of(KernelKind kind) {
  constexpr const char* kNames[] = {"rows", "attention", "matmul"};
  return kNames[int(kind)];
}

bool matches(const std::string& text, const std::string& part) {
  return plain(text).find(plain(part)) != std::string::npos;
}

std::vector<KernelRow> bench_kernels(const KernelOptions& options,
                                     const std::function<void(const std::vector<KernelRow>&)>& progress) {
  Device::open(options.place.target, options.place.threads); // a place that is not here is no fault of the kernels
  Bench bench(options);
  for (const KernelCase& k : bench.cases()) {
    bench.run(k);
    if (progress) progress(bench.finished());
  }
  return bench.finished();
}

} // namespace triax
