#include "train/json_file.h"
#include "data/file.h"
#include "kernels/check.h"
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace triax {

using json = nlohmann::json;

namespace {

// nlohmann's printer recurses: a limit on depth keeps a hostile file from ending the stack when a value is shown.
constexpr int kMaxDepth = 100;

std::string reason(const json::parse_error& error) {
  const std::string what = error.what(); // "[json.exception...] parse error at line 1, column 2: REASON"
  const size_t column = what.find("column ");
  const size_t start = column == std::string::npos ? std::string::npos : what.find(": ", column);
  return start == std::string::npos ? what : what.substr(start + 2);
}

std::string line_and_column(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte == 0 ? 0 : byte - 1, text.size()));
  const size_t line = size_t(std::count(before.begin(), before.end(), '\n')) + 1;
  const size_t start = before.rfind('\n');
  return concat(line, ":", before.size() - (start == std::string_view::npos ? 0 : start + 1) + 1);
}

} // namespace

json parse_json(std::string_view text, const std::string& place, Comments comments) {
  DEMAND(text.find_first_not_of(" \t\r\n") != std::string_view::npos, place, ": is empty, but must hold a JSON value");
  std::vector<std::set<std::string>> keys; // of the objects that are open
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    DEMAND(depth <= kMaxDepth, place, ": is nested deeper than ", kMaxDepth, " levels");
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key)
      DEMAND(keys.back().insert(parsed.get<std::string>()).second, place, ": the key \"", parsed.get<std::string>(),
             "\" is given twice in one object");
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch, true, comments == Comments::allowed);
  } catch (const json::parse_error& error) {
    fail(concat(place, ":", line_and_column(text, error.byte), ": ", reason(error)));
  } catch (const json::exception& error) { // a number out of range, say
    const std::string what = error.what(); // "[json.exception.NAME.NUMBER] REASON"
    fail(concat(place, ": ", what.substr(std::min(what.size(), what.find("] ") + 2))));
  }
}

json read_json_file(const std::string& path, Comments comments) { return parse_json(read_file(path), path, comments); }

std::string shown(const json& value) {
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

} // namespace triax
