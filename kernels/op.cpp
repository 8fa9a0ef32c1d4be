#include "kernels/choice.h"
#include <algorithm>
#include <cstdlib>
#include <map>

namespace triax {

Target Target::parse(const std::string& name) {
  if (name == "cpu") return {};
  bool ok = name.size() >= 5 && name.compare(0, 3, "sm_") == 0;
  for (size_t i = 3; i < name.size(); ++i)
    ok = ok && ((name[i] >= '0' && name[i] <= '9') || (i + 1 == name.size() && name[i] == 'a'));
  DEMAND(ok, "target '", name, "' is not known; use cpu or a GPU architecture such as sm_80, sm_90a or sm_100a");
  return {Kind::cuda, name};
}

namespace {

/// What is registered for one kind, and which name was chosen.
struct Entry {
  std::map<std::string, std::map<std::string, LaunchFn>> launches; ///< by name and backend
  std::map<std::string, DescribeFn> describes;                     ///< by name; null: the kind's own
  std::string chosen = kReference;
  std::string favourite; ///< what "auto" means where it takes the operation; empty: there is no "auto"
  TakesFn takes = nullptr;
  std::string (*obstacle)() = nullptr; ///< of the favourite; null: none
  std::string left_out;                ///< why the favourite is not taken; empty: it is
};
std::map<std::string, Entry>& registry() {
  static std::map<std::string, Entry> kinds;
  return kinds;
}

const char* gpu_units = "cuda";

const char* best_host_level() {
#if defined(__x86_64__)
  const char* limit = std::getenv("TRIAX_HOST_LEVEL");
  const bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512cd");
  DEMAND(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"),
         "this CPU has neither AVX2 nor FMA; triax needs x86-64-v3 (Haswell, Zen or newer)");
  return v4 && !(limit && std::string(limit) == "v3") ? "v4" : "v3";
#else
  return "portable";
#endif
}

} // namespace

void run_on_gpu(const char* units) { gpu_units = units; }

const char* host_level() {
  static const char* level = best_host_level();
  return level;
}

LaunchRegistration::LaunchRegistration(const char* backend, const char* kind, LaunchFn launch, const char* name,
                                       DescribeFn describe) {
  Entry& entry = registry()[kind];
  ENSURE(entry.launches[name].emplace(backend, launch).second, "two launches '", name, "' of ", kind, " for ", backend);
  if (describe || !entry.describes.count(name)) entry.describes[name] = describe;
}

NameRegistration::NameRegistration(const char* kind, const char* name, DescribeFn describe) {
  registry()[kind].describes[name] = describe;
}

FavouriteRegistration::FavouriteRegistration(const char* kind, const char* name, TakesFn takes) {
  Entry& entry = registry()[kind];
  entry.favourite = name;
  entry.takes = takes;
}

ObstacleRegistration::ObstacleRegistration(const char* kind, std::string (*obstacle)()) {
  registry()[kind].obstacle = obstacle;
}

namespace {

/// A kind, or those that begin so, which have a favourite.
std::vector<std::string> with_favourite(const std::string& kind) {
  std::vector<std::string> kinds;
  for (const auto& [key, entry] : registry())
    if ((key == kind || key.rfind(kind + "_", 0) == 0) && !entry.favourite.empty()) kinds.push_back(key);
  return kinds;
}

} // namespace

bool has_favourite(const std::string& kind) { return !with_favourite(kind).empty(); }

std::string obstacle_of_favourite(const std::string& kind, const Target& target) {
  for (const std::string& one : with_favourite(kind)) {
    const Entry& entry = registry()[one];
    if (!find_launch(OpKind{one.c_str(), nullptr}, target.kind, entry.favourite))
      return concat("this binary was built without '", entry.favourite, "' for ", target.name);
    if (const std::string why = entry.obstacle ? entry.obstacle() : ""; !why.empty()) return why;
  }
  return "";
}

void leave_out_favourite(const std::string& kind, const std::string& why) {
  for (const std::string& one : with_favourite(kind)) registry()[one].left_out = why;
}

std::string why_left_out(const std::string& kind) {
  const auto kinds = with_favourite(kind);
  return kinds.empty() ? "" : registry()[kinds.front()].left_out;
}

std::vector<std::string> implementations(const OpKind& kind) {
  std::vector<std::string> names{kReference};
  for (const auto& [name, describe] : registry()[kind.name].describes)
    if (name != kReference) names.push_back(name);
  return names;
}

void choose_implementation(const std::string& kind, const std::string& name) {
  std::vector<std::string> names;
  bool known = false, chosen = false;
  for (auto& [key, entry] : registry()) {
    if (key != kind && key.rfind(kind + "_", 0) != 0) continue;
    known = true;
    for (const auto& [other, describe] : entry.describes)
      if (std::find(names.begin(), names.end(), other) == names.end()) names.push_back(other);
    if (!entry.favourite.empty() && std::find(names.begin(), names.end(), kAutomatic) == names.end())
      names.push_back(kAutomatic);
    if (name == kAutomatic ? entry.favourite.empty() : !entry.describes.count(name)) continue;
    entry.chosen = name;
    chosen = true;
  }
  if (!known)
    for (const auto& [key, entry] : registry()) names.push_back(key);
  DEMAND(known, "kernels.", kind, ": no operation has this name; there are ", listed(names));
  DEMAND(chosen, "kernels.", kind, " is '", name, "', which this binary does not have; it has ", listed(names));
}

std::vector<std::string> operation_families() {
  std::vector<std::string> names;
  for (const auto& [kind, entry] : registry())
    if (const auto at = kind.find("_forward");
        at != std::string::npos && registry().count(kind.substr(0, at) + "_backward"))
      names.push_back(kind.substr(0, at));
    else if (kind.find("_backward") == std::string::npos)
      names.push_back(kind);
  return names;
}

std::string family_of(const OpKind& kind) {
  const std::string name = kind.name;
  for (const std::string& family : operation_families())
    if (name == family + "_forward" || name == family + "_backward") return family;
  return name;
}

std::string chosen_implementation(const OpKind& kind) { return registry()[kind.name].chosen; }

std::string implementation_of(const Target& target, const Op& op) {
  const Entry& entry = registry()[op.kind->name];
  if (entry.chosen != kAutomatic) return entry.chosen;
  return entry.left_out.empty() && entry.takes(target, op) ? entry.favourite : kReference;
}

Description describe(const Target& target, const Op& op) {
  const Entry& entry = registry()[op.kind->name];
  Description reference = op.kind->describe(target, op);
  const std::string name = implementation_of(target, op);
  const auto own = entry.describes.find(name);
  if (name == kReference || own == entry.describes.end() || !own->second) return reference;
  Description chosen = own->second(target, op);
  chosen.scratch = std::max(chosen.scratch, reference.scratch); // the first launches are compared
  return chosen;
}

LaunchFn find_launch(const OpKind& kind, Target::Kind target, const std::string& name) {
  const auto& launches = registry()[kind.name].launches;
  const auto named = launches.find(name);
  const auto find = [&](const std::string& backend) {
    if (named == launches.end()) return LaunchFn(nullptr);
    const auto at = named->second.find(backend);
    return at == named->second.end() ? nullptr : at->second;
  };
  const bool gpu = target == Target::Kind::cuda;
  const LaunchFn launch = find(gpu ? gpu_units : host_level());
  return launch || (gpu && gpu_units == std::string("cuda")) ? launch : find("host");
}

LaunchFn find_launch(const OpKind& kind, Target::Kind target) {
  const std::string chosen = chosen_implementation(kind);
  return find_launch(kind, target, chosen == kAutomatic ? kReference : chosen);
}

Op& Op::add(const Tensor& t, Access access) {
  ENSURE(operand_count < kMaxOperands, kind->name, " has more than ", kMaxOperands, " operands");
  operands[operand_count++] = {t, access};
  return *this;
}

std::string Op::describe() const {
  constexpr const char* kAccess[] = {"read ", "write ", "update "};
  std::string text = concat(kind->name, "(");
  for (int i = 0; i < operand_count; ++i)
    text += concat(i ? ", " : "", has(i) ? kAccess[int(operands[i].access)] : "",
                   has(i) ? operands[i].tensor.describe() : "-");
  return text + ")";
}

double operand_bytes(const Op& op) {
  double bytes = 0;
  for (int i = 0; i < op.operand_count; ++i)
    if (op.has(i)) bytes += double(op[i].bytes()) * (op.operands[i].access == Access::update ? 2 : 1);
  return bytes;
}

} // namespace triax
