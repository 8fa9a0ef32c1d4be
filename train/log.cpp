#include "train/log.h"
#include "kernels/check.h"
#include "train/publish.h"
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace triax {
namespace {

/// Is a person's terminal at the other end? Open MPI gives its ranks one of their own, whatever their output goes to.
bool at_terminal() { return isatty(STDOUT_FILENO) && !std::getenv("OMPI_COMM_WORLD_SIZE"); }

/// The lines of events up to a step; a last line that was cut off by a crash goes too.
std::string kept_lines(const std::string& path, int64_t last_step) {
  std::ifstream in(path);
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    const bool known = event.is_object() && event.contains("step") && event["step"].is_number_integer();
    if (known && event["step"].get<int64_t>() <= last_step) kept += line + "\n";
  }
  return kept;
}

} // namespace

RunLog::RunLog(const std::string& folder, int64_t resumed_at)
    : path_((std::filesystem::path(folder) / "log.jsonl").string()), terminal_(at_terminal()) {
  std::filesystem::create_directories(folder);
  if (std::filesystem::exists(path_))
    publish_text(path_, resumed_at > 0 ? kept_lines(path_, resumed_at) : std::string());
  out_.open(path_, std::ios::app);
  DEMAND(out_, path_, " cannot be written; check the permissions of run.folder");
}

void RunLog::write(const nlohmann::ordered_json& event) {
  out_ << event.dump() << "\n" << std::flush;
  DEMAND(out_, path_, ": a line could not be written; is the disk full?");
}

void RunLog::progress(const std::string& line, bool last) {
  const auto now = std::chrono::steady_clock::now();
  if (terminal_) {
    std::cout << "\r\033[K" << line << (last ? "\n" : "") << std::flush;
    pending_ = !last;
  } else if (last || now - shown_ >= std::chrono::seconds(5)) {
    std::cout << line << "\n" << std::flush;
    shown_ = now;
  }
}

void RunLog::say(const std::string& line) {
  if (pending_) std::cout << "\n";
  pending_ = false;
  std::cout << line << "\n" << std::flush;
}

std::string with_commas(double number) {
  std::string digits = std::to_string(int64_t(std::llround(number)));
  for (int64_t at = int64_t(digits.size()) - 3; at > (digits[0] == '-' ? 1 : 0); at -= 3)
    digits.insert(size_t(at), ",");
  return digits;
}

std::string duration(double seconds) {
  const int64_t s = std::llround(std::max(seconds, 0.0));
  const auto two = [](int64_t n) { return concat(n < 10 ? "0" : "", n); };
  if (s >= 3600) return concat(s / 3600, "h", two(s / 60 % 60), "m");
  return s >= 60 ? concat(s / 60, "m", two(s % 60), "s") : concat(s, "s");
}

} // namespace triax
