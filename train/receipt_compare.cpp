#include "train/receipt_compare.h"
#include "kernels/check.h"
#include "train/json_file.h"
#include "train/receipt.h"
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

namespace triax {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;
using Comparison = ReceiptComparison;

const char* const kMustBeEqual[] = {"receipt", "configuration", "ranks", "mesh", "dtype", "seeds", "data"};
const char* const kMayDiffer[] = {"binary", "machine", "libraries"};
const std::set<std::string> kOfNoWeight = {"configuration.run.folder", "configuration.run.log_every",
                                           "configuration.checkpoint.every", "configuration.checkpoint.keep",
                                           "configuration.data.folder"};

/// Its leaves, by dotted path.
void flatten(const std::string& path, const json& value, std::map<std::string, json>& leaves) {
  if (value.is_object() && !value.empty())
    for (const auto& [name, member] : value.items()) flatten(path + "." + name, member, leaves);
  else
    leaves[path] = value;
}

std::vector<Comparison::Difference> differences(const char* part, const json& a, const json& b) {
  std::map<std::string, json> left, right;
  if (a.contains(part)) flatten(part, a[part], left);
  if (b.contains(part)) flatten(part, b[part], right);
  std::set<std::string> paths;
  for (const auto& [path, leaf] : left) paths.insert(path);
  for (const auto& [path, leaf] : right) paths.insert(path);
  std::vector<Comparison::Difference> found;
  for (const std::string& path : paths) {
    const auto in_a = left.find(path), in_b = right.find(path);
    if (in_a == left.end() || in_b == right.end() || in_a->second != in_b->second)
      found.push_back({path, in_a == left.end() ? "absent" : shown(in_a->second),
                       in_b == right.end() ? "absent" : shown(in_b->second)});
  }
  return found;
}

// ---- losses ----

std::map<int64_t, double> kept_losses(const json& losses) {
  std::map<int64_t, double> kept;
  const int64_t first = losses.at("first_step"), every = losses.at("every");
  int64_t step = (first + every - 1) / every * every;
  for (const json& loss : losses.at("losses")) {
    kept[step] = loss.is_number() ? loss.get<double>() : std::numeric_limits<double>::quiet_NaN();
    step += every;
  }
  return kept;
}

/// "steps 1 to 20"
std::string steps_text(int64_t first, int64_t last) {
  return first == last ? concat("step ", first) : concat("steps ", first, " to ", last);
}

/// Of the steps whose losses both kept.
std::string kept_text(const json& a, const json& b) {
  const std::map<int64_t, double> left = kept_losses(a), right = kept_losses(b);
  int64_t last_equal = 0, first = 0, count = 0;
  for (const auto& [step, loss] : left) {
    const auto other = right.find(step);
    if (other == right.end()) continue;
    ++count;
    if (first == 0) first = step;
    const bool equal = loss == other->second || (loss != loss && other->second != other->second);
    if (!equal) {
      const int64_t every = std::max(a.at("every").get<int64_t>(), b.at("every").get<int64_t>());
      const std::string from = every == 1 ? concat("from step ", step, " on")
                                          : concat("at step ", step,
                                                   last_equal ? concat(", not yet at ", last_equal)
                                                              : std::string(", the first that both kept"));
      return concat("the losses differ ", from, ": ", json(loss).dump(), " in A, ", json(other->second).dump(),
                    " in B");
    }
    last_equal = step;
  }
  if (count == 0) return "the losses cannot be compared: there is no step whose loss both kept";
  return concat("the losses that both kept, of ", count, " of ", steps_text(first, last_equal),
                ", are equal to the bit");
}

std::string losses_text(const json& a, const json& b) {
  const json none, &left = a.contains("losses") ? a["losses"] : none,
                   &right = b.contains("losses") ? b["losses"] : none;
  if (left.is_null() && right.is_null()) return "";
  if (left.is_null() || right.is_null()) return concat("only ", left.is_null() ? "B" : "A", " has losses");
  const int64_t first = left.at("first_step"), last = left.at("last_step");
  const bool same_steps = right.at("first_step") == first && right.at("last_step") == last;
  if (same_steps && left.at("hash") == right.at("hash"))
    return concat("the same training to the bit: the losses of ", steps_text(first, last), " have the hash ",
                  left.at("hash").get<std::string>());
  const std::string kept = kept_text(left, right);
  if (!same_steps)
    return concat("A has the losses of ", steps_text(first, last), ", B of ",
                  steps_text(right.at("first_step"), right.at("last_step")), "; ", kept);
  if (kept.find("differ") != std::string::npos) return kept;
  return concat("the losses differ, as their hashes say, but in no step that both kept; ", kept);
}

// ---- speeds ----

struct Row {
  std::string name;
  double value;
  bool tokens;
  json loss; ///< of a benchmark's last step
};

std::string text_of(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

/// By the speed that each result or row of results has; those without are left out.
std::vector<Row> rows_of(const json& receipt) {
  std::vector<Row> rows;
  const json result = receipt.contains("result") ? receipt["result"] : json();
  for (const json& row : result.is_array() ? result : json::array({result})) {
    if (!row.is_object()) continue;
    std::string name;
    for (const char* key : {"model", "kernel", "implementation", "dtype", "shape", "micro_batch", "sequence"})
      if (result.is_array() && row.contains(key))
        name += concat(name.empty() ? "" : " ", std::string(key) == "sequence" ? "x " : "", text_of(row[key]));
    if (result.is_array() && row.value("repro", false)) name += " repro";
    for (const char* key : {"tokens_per_s", "seconds"})
      if (row.contains(key) && row[key].is_number()) {
        rows.push_back({name.empty() ? "training" : name, row[key].get<double>(), key[0] == 't',
                        result.is_array() ? row.value("loss", json()) : json()});
        break;
      }
  }
  return rows;
}

std::string loss_text(const json& a, const json& b) {
  if (!a.is_number() || !b.is_number()) return "";
  if (a == b) return "the last loss is the same to the bit";
  return concat("the last loss is ", a.dump(), " in A, ", b.dump(), " in B");
}

void compare_speeds(const std::vector<Row>& a, const std::vector<Row>& b, Comparison& comparison) {
  const auto find = [](const std::vector<Row>& rows, const Row& row) {
    return std::find_if(rows.begin(), rows.end(),
                        [&](const Row& r) { return r.name == row.name && r.tokens == row.tokens; });
  };
  for (const Row& row : a) {
    const auto other = find(b, row);
    if (other == b.end())
      comparison.only_in_a.push_back(row.name);
    else
      comparison.speeds.push_back({row.name, row.value, other->value, row.tokens,
                                   row.tokens ? other->value / row.value : row.value / other->value,
                                   loss_text(row.loss, other->loss)});
  }
  for (const Row& row : b)
    if (find(a, row) == a.end()) comparison.only_in_b.push_back(row.name);
}

std::string file_of(const std::string& path) {
  DEMAND(fs::exists(path), path, ": there is no such file or folder; name a receipt or a folder that holds one");
  if (!fs::is_directory(path)) return path;
  if (const fs::path whole = fs::path(path) / kReceiptName; fs::exists(whole)) return whole.string();
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.path().extension() == kReceiptEnding) found.push_back(entry.path().string());
  std::sort(found.begin(), found.end());
  DEMAND(!found.empty(), path, ": holds no ", kReceiptName, " and no *", kReceiptEnding,
         "; runs write theirs when they end");
  DEMAND(found.size() == 1, path, ": holds several receipts (", listed(found), "); name one of them");
  return found[0];
}

} // namespace

json read_receipt(const std::string& path) {
  const std::string file = file_of(path);
  json receipt = read_json_file(file);
  DEMAND(receipt.is_object() && receipt.contains("receipt") && receipt.contains("configuration"), file,
         ": is no receipt of triax: it has no \"receipt\" and \"configuration\"");
  return receipt;
}

Comparison compare_receipts(const json& a, const json& b) {
  Comparison comparison;
  for (const char* part : kMustBeEqual)
    for (Comparison::Difference& d : differences(part, a, b))
      (kOfNoWeight.count(d.path) ? comparison.circumstances : comparison.unlike).push_back(std::move(d));
  for (const char* part : kMayDiffer)
    for (Comparison::Difference& d : differences(part, a, b)) comparison.circumstances.push_back(std::move(d));
  try {
    comparison.losses = losses_text(a, b);
    compare_speeds(rows_of(a), rows_of(b), comparison);
  } catch (const json::exception&) {
    fail("a receipt is damaged: its losses or its result are not as triax writes them; run it again");
  }
  return comparison;
}

} // namespace triax
