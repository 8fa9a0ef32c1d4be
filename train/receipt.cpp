#include "train/receipt.h"
#include "comm/transport.h"
#include "data/file.h"
#include "data/split_info.h"
#include "kernels/libraries.h"
#include "train/build_info.h"
#include "train/publish.h"
#include <cmath>
#include <fstream>
#include <sys/utsname.h>
#include <unistd.h>
#include <xxhash.h>

namespace triax {
namespace {

using Json = nlohmann::ordered_json;

/// Of this process's own file.
const std::string& binary_hash() {
  static const std::string hash = [] {
    const MappedFile binary("/proc/self/exe");
    return hex64(XXH3_64bits(binary.data(), size_t(binary.size())));
  }();
  return hash;
}

/// As Linux names it: x86 by model; elsewhere there are only numbers.
std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  std::map<std::string, std::string> first;
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t end = line.find_last_not_of(" \t", colon - 1);
    const std::string value = colon + 2 <= line.size() ? line.substr(colon + 2) : "";
    first.emplace(line.substr(0, end + 1), value);
  }
  if (first.count("model name")) return first["model name"];
  return first.count("CPU part") ? concat("implementer ", first["CPU implementer"], " part ", first["CPU part"])
                                 : std::string("unknown");
}

Json machine_json(const Target& target, int threads, int ranks_on_host) {
  struct utsname system {};
  uname(&system);
  return {{"target", target.name},
          {"cpu", cpu_model()},
          {"isa", host_level()},
          {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory_bytes", int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE)},
          {"system", concat(system.sysname, " ", system.release, " ", system.machine)},
          {"threads", threads},
          {"ranks_on_host", ranks_on_host}};
}

Json binary_json() {
  return {{"hash", binary_hash()},
          {"sources", kBuildInfo.sources},
          {"compiler", kBuildInfo.compiler},
          {"options", kBuildInfo.options}};
}

Json libraries_json() {
  Json libraries = Json::object();
  for (const auto& [name, version] : library_versions()) libraries[name] = version;
  if (const Transport* transport = Transport::current(); transport && !transport->library().empty())
    libraries["MPI"] = transport->library();
  return libraries;
}

} // namespace

void LossRecord::add(int64_t step, double loss) {
  ENSURE(first_ == 0 || step == last_ + 1, "the loss of step ", step, " follows that of step ", last_);
  if (first_ == 0) first_ = step;
  last_ = step;
  last_loss_ = loss;
  struct {
    int64_t step;
    double loss;
  } const both{step, loss};
  hash_ = XXH3_64bits_withSeed(&both, sizeof both, hash_);
  if (step % every_ != 0) return;
  losses_.push_back(loss);
  if (losses_.size() <= kMost) return;
  every_ *= 2; // and of those kept, every second one stays
  std::vector<double> fewer;
  const int64_t before = every_ / 2,
                first = (first_ + before - 1) / before; // the first kept one is step first * before
  for (size_t i = 0; i < losses_.size(); ++i)
    if ((first + int64_t(i)) % 2 == 0) fewer.push_back(losses_[i]);
  losses_ = std::move(fewer);
}

Json LossRecord::to_json() const {
  if (first_ == 0) return nullptr;
  return {{"first_step", first_}, {"last_step", last_}, {"hash", hex64(hash_)},
          {"last", last_loss_},   {"every", every_},    {"losses", losses_}};
}

Receipt::Receipt(const RunConfig& config, const Mesh& mesh, int ranks_on_host, const Target& target, int threads,
                 Dtype dtype)
    : Receipt("train", to_json(config), mesh.world(), ranks_on_host, target, threads) {
  const SplitInfo data = split_info(config.data.folder, "train");
  Json axes;
  for (int a = 0; a < kAxes; ++a) axes[name_of(Axis(a))] = mesh.size(Axis(a));
  head_["mesh"] = axes;
  head_["dtype"] = name_of(dtype);
  head_["seeds"] = {{"train", config.train.seed}, {"data", config.data.seed}};
  head_["data"] = {{"content", hex64(XXH3_64bits(data.identity.data(), data.identity.size()))},
                   {"tokens", data.tokens}};
}

Receipt::Receipt(const std::string& what, Json asked, int ranks, int ranks_on_host, const Target& target, int threads)
    : head_{{"receipt", what},
            {"binary", binary_json()},
            {"machine", machine_json(target, threads, ranks_on_host)},
            {"ranks", ranks},
            {"configuration", std::move(asked)}} {}

void Receipt::write(const std::string& path, const Json& result) const {
  Json all = head_;
  all["libraries"] = libraries_json(); // those that were opened meanwhile, too
  all["losses"] = losses_.to_json();
  all["result"] = result;
  publish_text(path, all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

} // namespace triax
