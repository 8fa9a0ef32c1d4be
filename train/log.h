// What a run says: JSON lines for programs, a progress line for people. Only rank 0 has one.
#pragma once
#include <chrono>
#include <cstdint>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace triax {

class RunLog {
public:
  /// Appends to FOLDER/log.jsonl; events after step `resumed_at` are removed first, so that no step stands there twice.
  RunLog(const std::string& folder, int64_t resumed_at);
  /// One event as one line of valid JSON: numbers that are not finite become null.
  void write(const nlohmann::ordered_json& event);
  /// On a terminal the line is renewed in place; elsewhere one is printed every few seconds, and always when `last`.
  void progress(const std::string& line, bool last);
  /// A line of its own.
  void say(const std::string& line);

private:
  std::string path_;
  std::ofstream out_;
  bool terminal_;
  bool pending_ = false; ///< a progress line stands without a line end
  std::chrono::steady_clock::time_point shown_{};
};

std::string with_commas(double number); ///< 12,345
std::string duration(double seconds);   ///< "2m05s"

} // namespace triax
