#include "train/weights.h"
#include <algorithm>
#include <cstring>

namespace triax {
namespace {

/// A tensor of the files: one piece of a parameter, or several one above the other, [rows, columns] as the model has
/// them (turned in the file where transposed).
struct Entry {
  const Parameter* parameter;
  std::vector<const Piece*> pieces;
  std::string name;
  int64_t first_row = 0, rows = 0, columns = 1; ///< first_row: in the whole parameter
  bool transposed = false;
  std::vector<int64_t> shape() const {
    if (parameter->vector) return {rows};
    return transposed ? std::vector<int64_t>{columns, rows} : std::vector<int64_t>{rows, columns};
  }
};

enum class Copies { no, yes };
std::vector<Entry> entries_of(const ParamTable& table, Copies copies = Copies::no) {
  std::vector<Entry> entries;
  for (const Parameter& p : table.rows()) {
    if (p.is_copy && copies == Copies::no) continue;
    for (const Piece& piece : p.pieces) {
      if (entries.empty() || entries.back().parameter != &p || entries.back().name != piece.name)
        entries.push_back({&p, {}, piece.name, piece.first_of_all, 0, piece.all_columns, piece.transposed});
      entries.back().pieces.push_back(&piece);
      entries.back().rows += piece.all_rows;
    }
  }
  return entries;
}

/// Neighbouring elements of one row of an entry that this rank owns.
struct Run {
  int64_t row, column, count;
  int64_t at;     ///< of the first, in what the rank owns of the parameter
  bool is_shared; ///< other ranks of the tensor-parallel group own them too, and come before this one
};

template <class Visit> void each_run(const Layout& l, const Entry& e, const Visit& visit) {
  const Parameter& p = *e.parameter;
  const OwnedRange owned(l, p);
  for (const Piece* piece : e.pieces) {
    const int64_t base = p.offset + piece->first * p.columns;
    const int64_t from = std::max(owned.begin, base),
                  to = std::min(owned.end, base + piece->rows_at(l.tensor_rank) * p.columns);
    const int64_t row0 = piece->first_of_all - e.first_row + piece->first_row_at(l.tensor_rank);
    const bool shared = piece->parted == Parted::whole ? l.tensor_rank > 0 : l.tensor_rank % piece->copies != 0;
    for (int64_t i = from; i < to;) {
      const int64_t row = (i - base) / p.columns, column = (i - base) % p.columns;
      const int64_t count = std::min(to - i, p.columns - column);
      visit(Run{row0 + row, p.first_column_at(l.tensor_rank) + column, count, i - owned.begin, shared});
      i += count;
    }
  }
}

/// The tensor of that name; files of GPT-2 without the head (the original ones) leave the prefix out.
const StoredTensor& find_stored(const SafetensorsFolder& files, const std::string& prefix, const std::string& name) {
  constexpr const char* kTrunk = "transformer.";
  if (name.rfind(kTrunk, 0) == 0 && !files.find(prefix + name))
    if (const StoredTensor* bare = files.find(prefix + name.substr(std::strlen(kTrunk)))) return *bare;
  return files.at(prefix + name);
}

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += concat(i ? ", " : "", shape[i]);
  return text + "]";
}

uint16_t bf16_bits(float f) { // to nearest even; exact for what was bf16 before
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return (u & 0x7fffffffu) > 0x7f800000u ? uint16_t(0x7fff) : uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

std::vector<float> read_owned(Device& device, const Tensor& owned, const OwnedRange& part) {
  if (part.count() == 0) return {};
  const Tensor from = owned.slice(0, part.at, part.count());
  std::vector<std::byte> bytes(size_t(from.bytes()));
  device.read(from, bytes.data());
  return floats_of(from.dtype, bytes.data(), part.count());
}

template <class T> void store_entry(SafetensorsWriter* writer, Transport& transport, const Layout& layout,
                                    const Entry& e, const std::vector<T>& mine, bool counts) {
  constexpr int64_t kChunk = int64_t(64) << 20;                                                        // bytes
  const int64_t rows = e.transposed ? e.columns : e.rows, columns = e.transposed ? e.rows : e.columns; // of the file
  const int64_t step = std::max<int64_t>(kChunk / (columns * int64_t(sizeof(T))), 1);
  std::vector<T> chunk;
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t n = std::min(step, rows - first);
    chunk.assign(size_t(n * columns), T(0));
    const auto lay = [&](const Run& run) {
      if (!counts || run.is_shared) return;
      if (!e.transposed) {
        if (run.row >= first && run.row < first + n)
          std::copy_n(mine.data() + run.at, run.count, chunk.data() + (run.row - first) * columns + run.column);
      } else {
        for (int64_t i = std::max(run.column, first); i < std::min(run.column + run.count, first + n); ++i)
          chunk[size_t((i - first) * columns + run.row)] = mine[size_t(run.at + i - run.column)];
      }
    };
    each_run(layout, e, lay);
    transport.combine(chunk.data(), int64_t(chunk.size() * sizeof(T)), 0);
    if (writer) writer->write(chunk.data(), int64_t(chunk.size() * sizeof(T)));
  }
}

template <class T> void store_as(SafetensorsWriter* writer, Transport& transport, Device& device, const Layout& layout,
                                 const Tensor& owned, bool counts) {
  std::vector<T> mine;
  const Parameter* read = nullptr;
  for (const Entry& e : entries_of(layout.table)) {
    const OwnedRange part(layout, *e.parameter);
    if (std::exchange(read, e.parameter) != e.parameter) {
      mine.resize(size_t(part.count()));
      if (part.count() > 0) device.read(owned.slice(0, part.at, part.count()), mine.data());
    }
    store_entry(writer, transport, layout, e, mine, counts);
  }
}

/// This rank's elements of an entry, into what it owns of the parameter.
void read_entry(const StoredTensor& stored, const Layout& layout, const Entry& e, std::vector<float>& mine) {
  std::vector<float> turned;
  if (e.transposed) {
    turned.resize(size_t(e.rows * e.columns));
    read_floats(stored, 0, e.rows * e.columns, turned.data());
  }
  each_run(layout, e, [&](const Run& run) {
    float* to = mine.data() + run.at;
    if (!e.transposed) return read_floats(stored, run.row * e.columns + run.column, run.count, to);
    for (int64_t i = 0; i < run.count; ++i) to[i] = turned[size_t((run.column + i) * e.rows + run.row)];
  });
}

void write_owned(Device& device, const Tensor& to, const std::vector<float>& values) {
  if (to.dtype == Dtype::f32) return device.write(to, values.data());
  std::vector<uint16_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), bf16_bits);
  device.write(to, bits.data());
}

} // namespace

void append(std::vector<ElementRun>& runs, const ElementRun& run) {
  ElementRun* last = runs.empty() ? nullptr : &runs.back();
  if (last && run.stride == 1 && last->stride == 1 && last->first + last->count == run.first)
    last->count += run.count;
  else
    runs.push_back(run);
}

std::vector<float> floats_of(Dtype dtype, const std::byte* from, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[size_t(i)] = float(number_at(dtype, from + i * bytes_of(dtype)));
  return values;
}

void each_owned(Device& device, const Layout& layout, const Tensor& owned,
                const std::function<void(const OwnedPart&)>& visit) {
  std::vector<float> mine;
  const Parameter* read = nullptr;
  for (const Entry& e : entries_of(layout.table)) {
    const OwnedRange part(layout, *e.parameter);
    if (std::exchange(read, e.parameter) != e.parameter) mine = read_owned(device, owned, part);
    OwnedPart given{e.name, e.parameter->layer, e.shape(), {}, {}};
    each_run(layout, e, [&](const Run& run) {
      if (run.is_shared) return;
      const int64_t first = e.transposed ? run.column * e.rows + run.row : run.row * e.columns + run.column;
      append(given.runs, {first, run.count, e.transposed ? e.rows : 1});
      given.values.insert(given.values.end(), mine.begin() + run.at, mine.begin() + run.at + run.count);
    });
    visit(given);
  }
}

OwnedRange::OwnedRange(const Layout& l, const Parameter& p) : begin(0), end(0), at(0) {
  if (p.unit < 0) return; // another stage has it
  const Unit& unit = l.table.units()[size_t(p.unit)];
  const int64_t n = unit.elements / l.pieces, first = unit.begin + l.index * n;
  begin = std::max(p.offset, first);
  end = std::max(begin, std::min(p.offset + p.size(), first + n));
  at = unit.begin / l.pieces + begin - first;
}

std::vector<TensorHeader> stored_tensors(const ParamTable& table, const std::string& prefix, Dtype dtype) {
  std::vector<TensorHeader> headers;
  for (const Entry& e : entries_of(table))
    headers.push_back({prefix + e.name, dtype == Dtype::bf16 ? StoredType::bf16 : StoredType::f32, e.shape()});
  return headers;
}

void store(SafetensorsWriter* writer, Transport& transport, Device& device, const Layout& layout, const Tensor& owned,
           bool counts) {
  owned.dtype == Dtype::bf16 ? store_as<uint16_t>(writer, transport, device, layout, owned, counts)
                             : store_as<float>(writer, transport, device, layout, owned, counts);
}

void restore(const SafetensorsFolder& files, const std::string& prefix, Device& device, const Layout& layout,
             const Tensor& owned) {
  const std::vector<Entry> entries = entries_of(layout.table, Copies::yes);
  std::vector<float> mine;
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& e = entries[i];
    const OwnedRange part(layout, *e.parameter);
    if (i == 0 || entries[i - 1].parameter != e.parameter) mine.assign(size_t(part.count()), 0.0f);
    const StoredTensor& stored = find_stored(files, prefix, e.name);
    DEMAND(stored.shape == e.shape(), "tensor ", stored.name, " has shape ", text_of(stored.shape),
           ", but this model needs ", text_of(e.shape()),
           "; the files and the configuration belong to different models");
    if (part.count() > 0) read_entry(stored, layout, e, mine);
    const bool complete = i + 1 == entries.size() || entries[i + 1].parameter != e.parameter;
    if (complete && part.count() > 0) write_owned(device, owned.slice(0, part.at, part.count()), mine);
  }
}

} // namespace triax
