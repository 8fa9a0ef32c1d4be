#include "train/capture_file.h"
#include "train/trainer.h"
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace triax {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMagic = 0x31707463'78697274; // "trixctp1"
constexpr const char* kEnding = ".bin";

/// Before each record; its name, runs and values follow.
struct Head {
  uint64_t magic;
  int64_t step, phase, order, layer, dtype, rows, columns, name_bytes, runs, values;
};

std::string path_of(const std::string& folder, int rank) {
  fs::create_directories(folder); // by whichever rank comes first
  char name[32];
  std::snprintf(name, sizeof name, "rank_%05d%s", rank, kEnding);
  return (fs::path(folder) / name).string();
}

/// Where an observed tensor of a micro-batch stands in the whole [rows of the global batch, columns].
std::vector<ElementRun> runs_of(const Observed& o, const Trainer& t, int64_t first_row, int64_t columns) {
  const int rank = t.mesh().index(kTensorAxes), ranks = t.mesh().size(kTensorAxes);
  const int64_t own_rows = o.tensor.dim[0], width = o.tensor.dim[1], own = int64_t(t.positions().size());
  std::vector<ElementRun> runs;
  for (int64_t n = 0; n < own_rows; ++n) {
    const int64_t row =
        o.parted == Parted::rows ? TensorParallel::row_of(n, own_rows, rank, ranks, t.config().comm.tensor_chunks) : n;
    const int64_t whole_row = row / own * t.config().data.sequence + t.positions()[size_t(row % own)];
    const int64_t column = o.parted == Parted::columns ? rank * width : 0;
    append(runs, {(first_row + whole_row) * columns + column, width, 1});
  }
  return runs;
}

} // namespace

const char* name_of(Phase phase) {
  constexpr const char* kNames[] = {"forward", "backward", "gradients", "weights"};
  return kNames[int(phase)];
}

std::string CapturedTensor::describe() const {
  return concat("step ", step, ", ", name_of(phase), layer < 0 ? std::string() : concat(", layer ", layer), ": ", name,
                " [", rows, columns == 1 ? std::string() : concat(", ", columns), "]");
}

CaptureFile::CaptureFile(const std::string& folder, int rank) : file_(path_of(folder, rank)) {}

void CaptureFile::write(const CapturedTensor& t, const std::vector<ElementRun>& runs,
                        const std::vector<float>& values) {
  if (runs.empty()) return;
  const Head head{kMagic,
                  t.step,
                  int64_t(t.phase),
                  t.order,
                  t.layer,
                  int64_t(t.dtype),
                  t.rows,
                  t.columns,
                  int64_t(t.name.size()),
                  int64_t(runs.size()),
                  int64_t(values.size())};
  file_.append(&head, sizeof head);
  file_.append(t.name.data(), t.name.size());
  file_.append(runs.data(), runs.size() * sizeof runs[0]);
  file_.append(values.data(), values.size() * sizeof values[0]);
}

void CaptureFile::write(const Trainer& trainer) {
  const float* scalars = trainer.scalars(); // all of the step is done
  CapturedTensor t;
  t.step = trainer.state().step;
  write_activations(trainer, t);
  if (trainer.is_first_owner()) {
    t.phase = Phase::gradients;
    write_parameters(trainer, t, trainer.shards().gradient_sums());
    t.phase = Phase::weights;
    write_parameters(trainer, t, trainer.master().empty() ? trainer.weights() : trainer.master());
  }
  if (trainer.mesh().rank() != 0) return;
  constexpr int64_t kBehind = int64_t(1) << 40; // all others of the phase
  t.phase = Phase::forward;
  write_scalar(t, "sum of the losses", kBehind, scalars[kLossSum]);
  write_scalar(t, "counted tokens", kBehind + 1, scalars[kTokenCount]);
  t.phase = Phase::gradients;
  write_scalar(t, "squared norm of the whole gradient", kBehind, scalars[kGradientNorm2]);
  write_scalar(t, "scale of the gradient, from mean and clipping", kBehind + 1, scalars[kGradientScale]);
}

void CaptureFile::write_activations(const Trainer& trainer, CapturedTensor t) {
  const RunConfig& c = trainer.config();
  const int rank = trainer.mesh().index(kTensorAxes), ranks = trainer.mesh().size(kTensorAxes);
  int64_t order[2] = {0, 0}, of = -1;
  for (const Capture::Taken& taken : trainer.capture()->taken()) {
    Observed o = taken.observed;
    if (std::exchange(of, taken.micro_batch) != taken.micro_batch) order[0] = order[1] = 0;
    t.phase = o.backward ? Phase::backward : Phase::forward;
    t.order = order[o.backward]++;
    if (o.parted == Parted::whole && rank > 0) continue;
    if (o.tensor.rank == 1) o.tensor = o.tensor.view({o.tensor.dim[0], 1});
    t.name = concat(o.backward ? "gradient of the " : "", o.name);
    t.layer = o.layer;
    t.dtype = o.tensor.dtype;
    t.rows = c.train.global_batch * c.data.sequence;
    t.columns = o.tensor.dim[1] * (o.parted == Parted::columns ? ranks : 1);
    const int64_t first = (trainer.first_of_share() + taken.micro_batch * micro_batch(c)) * c.data.sequence;
    write(t, runs_of(o, trainer, first, t.columns), floats_of(t.dtype, o.tensor.data<std::byte>(), o.tensor.size()));
  }
}

void CaptureFile::write_scalar(CapturedTensor t, const char* name, int64_t order, float value) {
  t.name = name;
  t.order = order;
  t.rows = 1;
  write(t, {{0, 1, 1}}, {value});
}

/// From the last layer to the first, as gradients are computed.
void CaptureFile::write_parameters(const Trainer& trainer, CapturedTensor t, const Tensor& owned) {
  t.order = int64_t(1) << 32;
  each_owned(trainer.device(), trainer.layout(), owned, [&](const OwnedPart& part) {
    --t.order;
    t.name = part.name;
    t.layer = part.layer;
    t.rows = part.shape[0];
    t.columns = part.shape.size() > 1 ? part.shape[1] : 1;
    write(t, part.runs, part.values);
  });
}

CapturedRun::CapturedRun(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == kEnding) paths.push_back(entry.path().string());
  DEMAND(!paths.empty(), folder, ": holds no rank_*", kEnding, "; a run with --capture writes them when it ends");
  for (const std::string& path : paths) files_.emplace_back(path);
  std::map<std::array<int64_t, 3>, Whole> wholes;
  for (const MappedFile& file : files_) index(file, wholes);
  for (auto& [place, whole] : wholes) {
    tensors_.push_back(std::move(whole.tensor));
    records_.push_back(std::move(whole.records));
  }
}

void CapturedRun::index(const MappedFile& file, std::map<std::array<int64_t, 3>, Whole>& wholes) {
  const std::string_view bytes = file.bytes();
  for (size_t at = 0; at < bytes.size();) {
    Head h{};
    if (bytes.size() - at >= sizeof h) std::memcpy(&h, bytes.data() + at, sizeof h);
    const char* name = bytes.data() + at + sizeof h;
    const size_t run_bytes = size_t(h.runs) * sizeof(ElementRun), value_bytes = size_t(h.values) * sizeof(float);
    const size_t size = sizeof h + size_t(h.name_bytes) + run_bytes + value_bytes;
    DEMAND(h.magic == kMagic && size <= bytes.size() - at, file.path(), ": byte ", at,
           " begins no whole record of this triax; capture the run again");
    at += size;
    CapturedTensor t{h.step, Phase(h.phase), h.order, h.layer, Dtype(h.dtype), h.rows, h.columns, {}};
    t.name.assign(name, size_t(h.name_bytes));
    const Record record{name + h.name_bytes, name + h.name_bytes + run_bytes, h.runs};
    Whole& whole = wholes[{h.step, h.phase, h.order}];
    if (whole.records.empty()) whole.tensor = t;
    ENSURE(whole.tensor.describe() == t.describe(), file.path(), " has ", t.describe(), " where another rank has ",
           whole.tensor.describe());
    whole.records.push_back(record);
  }
}

std::vector<float> CapturedRun::values(size_t i) const {
  const CapturedTensor& t = tensors_[i];
  std::vector<float> values(size_t(t.size()));
  std::vector<bool> there(values.size());
  int64_t missing = t.size();
  for (const Record& record : records_[i]) {
    const char* from = record.values;
    for (int64_t r = 0; r < record.run_count; ++r) {
      ElementRun run;
      std::memcpy(&run, record.runs + size_t(r) * sizeof run, sizeof run);
      for (int64_t n = 0; n < run.count; ++n, from += sizeof(float), --missing) {
        const int64_t e = run.first + n * run.stride;
        ENSURE(e >= 0 && e < t.size() && !there[size_t(e)], t.describe(), ": element ", e,
               " lies outside, or two ranks gave it");
        there[size_t(e)] = true;
        std::memcpy(&values[size_t(e)], from, sizeof(float));
      }
    }
  }
  ENSURE(missing == 0, t.describe(), ": no rank gave ", missing, " of the elements");
  return values;
}

} // namespace triax
