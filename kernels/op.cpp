#include "kernels/op.h"
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

using Key = std::pair<std::string, std::string>; // (backend, kind)
std::map<Key, LaunchFn>& registry() {
  static std::map<Key, LaunchFn> launches;
  return launches;
}

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

const char* host_level() {
  static const char* level = best_host_level();
  return level;
}

LaunchRegistration::LaunchRegistration(const char* backend, const char* kind, LaunchFn launch) {
  ENSURE(registry().emplace(Key(backend, kind), launch).second, "two launches of ", kind, " for ", backend);
}

LaunchFn find_launch(const OpKind& kind, Target::Kind target) {
  const auto find = [&](const char* backend) {
    const auto at = registry().find(Key(backend, kind.name));
    return at == registry().end() ? nullptr : at->second;
  };
  if (target == Target::Kind::cuda) return find("cuda");
  const LaunchFn by_level = find(host_level());
  return by_level ? by_level : find("host");
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
