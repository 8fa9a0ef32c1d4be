#include "train/bench_against.h"
#include "train/json_file.h"
#include "train/subprocess.h"
#include <algorithm>
#include <cmath>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <ostream>
#include <spawn.h>
#include <sys/wait.h>

extern char** environ;

namespace triax {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// What the program writes to its standard output; its errors go where ours go. Throws where it fails.
std::string output_of(const Words& words, const fs::path& folder) {
  const fs::path said = folder / "said";
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child = 0;
  const int problem = posix_spawn(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  DEMAND(problem == 0, "cannot start ", words[0], ": ", std::strerror(problem));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  DEMAND(WIFEXITED(status) && WEXITSTATUS(status) == 0, words[0], " ", words.size() > 1 ? words[1] : "",
         " failed; it says why above");
  return text_of(said);
}

/// The script of the tree that the binary lies in, else of the working folder's.
fs::path find_script() {
  const fs::path script = fs::path("scripts") / "build_revision";
  for (fs::path at : {fs::read_symlink("/proc/self/exe").parent_path(), fs::current_path()})
    for (;; at = at.parent_path()) {
      if (fs::exists(at / script)) return at / script;
      if (at == at.parent_path()) break;
    }
  fail("--against builds an earlier revision with scripts/build_revision, which lies above neither this binary nor the "
       "working folder; run it inside triax's repository");
}

/// One binary, and how its `bench kernels` is called.
class Side {
public:
  Side(std::string binary, const AgainstOptions& o, const fs::path& folder, std::ostream& out)
      : binary_(std::move(binary)), folder_(folder) {
    const std::string help = output_of({binary_, "bench", "kernels", "--help"}, folder_);
    const auto knows = [&](const char* word) { return help.find(word) != std::string::npos; };
    call_ = {binary_, "bench",          "--threads", std::to_string(o.kernels.place.threads),
             "--out", folder_.string(), "kernels"};
    if (knows("NAME")) {
      if (!o.kernels.name.empty()) call_.push_back(o.kernels.name);
    } else {
      out << o.revision << " is older than `bench kernels NAME`: it measures all its kernels each time, which takes "
          << "longer, and its rows are chosen afterwards\n";
    }
    if (knows("--target")) {
      call_.insert(call_.end(), {"--target", o.target});
    } else {
      DEMAND(!o.kernels.place.gpu(), o.revision, " is older than `bench kernels --target`: it measures the CPU alone; ",
             "compare with --target cpu");
    }
    if (o.kernels.dtype && knows("--dtype")) call_.insert(call_.end(), {"--dtype", triax::name_of(*o.kernels.dtype)});
    if (o.kernels.kind && knows("--kind")) call_.insert(call_.end(), {"--kind", triax::name_of(*o.kernels.kind)});
    if (o.kernels.size == BenchSize::tiny && knows("--size")) call_.insert(call_.end(), {"--size", "tiny"});
  }

  nlohmann::json run() const {
    output_of(call_, folder_);
    return read_json_file((folder_ / "kernels.json").string());
  }

private:
  std::string binary_;
  fs::path folder_;
  Words call_;
};

std::string key_of(const nlohmann::json& row) {
  return concat(row.at("kernel").get<std::string>(), "|", row.value("implementation", kReference), "|",
                row.at("dtype").get<std::string>(), "|", row.at("shape").get<std::string>());
}

/// Rows that were measured, by key, in their order.
std::vector<std::pair<std::string, nlohmann::json>> measured(const nlohmann::json& rows) {
  std::vector<std::pair<std::string, nlohmann::json>> all;
  for (const nlohmann::json& row : rows)
    if (row.at("seconds").is_number() && row.at("seconds").get<double>() > 0) all.emplace_back(key_of(row), row);
  return all;
}

void add(std::vector<AgainstRow>& rows, const nlohmann::json& measurement, bool own) {
  for (const auto& [key, row] : measured(measurement)) {
    auto at = std::find_if(rows.begin(), rows.end(), [&, &k = key](const AgainstRow& r) { return r.key == k; });
    if (at == rows.end()) {
      if (!own) continue; // of other kernels, or gone since
      const std::string implementation = row.value("implementation", kReference);
      const std::string name = row.at("kernel").get<std::string>();
      rows.push_back({key,
                      implementation == kReference ? name : concat(name, " (", implementation, ")"),
                      row.at("shape").get<std::string>(),
                      row.at("dtype").get<std::string>(),
                      {},
                      {},
                      {}});
      at = rows.end() - 1;
    }
    (own ? at->own : at->other).push_back(row.at("seconds").get<double>());
  }
}

} // namespace

Ratio ratio_of(const std::vector<double>& own, const std::vector<double>& other) {
  const size_t n = own.size();
  ENSURE(n == other.size() && n >= size_t(kFewestPairs), "a ratio of ", n, " and ", other.size(), " samples");
  std::vector<double> ratios(n);
  for (size_t i = 0; i < n; ++i) ratios[i] = own[i] / other[i];
  std::sort(ratios.begin(), ratios.end());
  // Each pair falls on one side of the true median like a coin: P(fewer than k on a side) is the binomial's tail.
  const auto binomial = [n](size_t k) {
    return std::exp(std::lgamma(double(n) + 1) - std::lgamma(double(k) + 1) - std::lgamma(double(n - k) + 1) -
                    double(n) * std::log(2.0));
  };
  size_t outside = 0; // order statistics left out on each side
  double tail = binomial(0);
  while (1 - 2 * (tail + binomial(outside + 1)) >= 0.95) tail += binomial(++outside);
  const double middle = n % 2 ? ratios[n / 2] : 0.5 * (ratios[n / 2 - 1] + ratios[n / 2]);
  return {middle, ratios[outside], ratios[n - 1 - outside], 1 - 2 * tail};
}

std::vector<AgainstRow> bench_against(const AgainstOptions& o, std::ostream& out) {
  const ScratchFolder scratch("triax-against");
  const fs::path own_folder = scratch / "own", other_folder = scratch / "other";
  fs::create_directories(own_folder);
  fs::create_directories(other_folder);
  Words build{find_script().string(), o.revision};
  if (o.kernels.place.gpu()) build.push_back("--cuda");
  std::string binary = output_of(build, own_folder);
  binary.erase(binary.find_last_not_of("\n") + 1);
  const Side own(fs::read_symlink("/proc/self/exe").string(), o, own_folder, out), other(binary, o, other_folder, out);
  std::vector<AgainstRow> rows;
  for (int pair = 0; pair < o.pairs; ++pair) {
    out << "pair " << pair + 1 << " of " << o.pairs << std::endl;
    const bool own_first = pair % 2 == 0;
    nlohmann::json first = (own_first ? own : other).run(), second = (own_first ? other : own).run();
    add(rows, own_first ? first : second, true);
    add(rows, own_first ? second : first, false);
  }
  std::vector<AgainstRow> common;
  for (AgainstRow& row : rows) {
    if (row.other.empty()) {
      out << row.name << " " << row.dtype << " " << row.shape << ": not in " << o.revision << "\n";
      continue;
    }
    ENSURE(int(row.own.size()) == o.pairs && int(row.other.size()) == o.pairs, row.key, " was measured ",
           row.own.size(), " and ", row.other.size(), " times in ", o.pairs, " pairs");
    row.ratio = ratio_of(row.own, row.other);
    common.push_back(std::move(row));
  }
  DEMAND(!common.empty(), "bench kernels --against: ", o.revision, " has none of these kernels");
  return common;
}

} // namespace triax
