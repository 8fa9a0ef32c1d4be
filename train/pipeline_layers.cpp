#include "kernels/check.h"
#include "train/pipeline.h"
#include <charconv>
#include <sstream>

namespace triax {

std::vector<LayerRange> split_layers(int64_t layers, int stages, int chunks, const std::string& layout) {
  DEMAND(layers >= 1 && stages >= 1 && chunks >= 1, "model.layers is ", layers, ", mesh.pp ", stages,
         " and pipeline.chunks ", chunks, "; each is at least 1");
  const int64_t parts = int64_t(stages) * chunks;
  const std::string product = concat("mesh.pp ", stages, " x pipeline.chunks ", chunks, " = ", parts, " chunks");
  std::vector<int64_t> counts;
  if (layout.empty()) {
    const int64_t pieces = layers + 2, left = pieces % parts;
    DEMAND(pieces >= parts, "model.layers ", layers, " + embedding + head = ", pieces, " pieces, too few for ", product,
           "; lower mesh.pp or pipeline.chunks to a product of at most ", pieces);
    // What is left over goes in front of the last chunk: the head costs more than a layer, and the first stage has the
    // most micro-batches in flight.
    for (int64_t part = 0; part < parts; ++part) {
      const bool one_more = part < parts - 1 && part >= parts - 1 - left;
      counts.push_back(pieces / parts + one_more - (part == 0) - (part == parts - 1));
    }
  } else {
    std::istringstream words(layout + ","); // so that an empty last word is seen too
    for (std::string word; std::getline(words, word, ',');) {
      int32_t count = -1;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), count);
      DEMAND(error == std::errc() && end == word.data() + word.size() && count >= 0, "pipeline.layout is '", layout,
             "', but must be numbers of layers with commas between them, as in 4,5,5,4; '", word, "' is none");
      counts.push_back(count);
    }
    DEMAND(int64_t(counts.size()) == parts, "pipeline.layout '", layout, "' has ", counts.size(),
           counts.size() == 1 ? " number, but " : " numbers, but ", product, " need one each");
  }
  std::vector<LayerRange> ranges;
  std::string sum;
  int64_t first = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t count = counts[size_t(part)];
    const bool embedding = part == 0, head = part == parts - 1;
    DEMAND(count > 0 || embedding || head, "pipeline.layout '", layout, "' leaves chunk ", part / stages, " of stage ",
           part % stages, " (number ", part + 1, " of ", parts,
           ") with nothing; only the first, with the embedding, and the last, with the head, can have 0 layers");
    ranges.push_back({first, count, embedding, head});
    first += count;
    sum += concat(part == 0 ? "" : " + ", count);
  }
  DEMAND(first == layers, "pipeline.layout '", layout, "' adds up to ", sum, " = ", first,
         " layers, but model.layers is ", layers);
  return ranges;
}

} // namespace triax
