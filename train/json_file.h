// JSON text with errors that a person can act on.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace triax {

enum class Comments { refused, allowed };

/// Throws "PLACE:LINE:COLUMN: ..." on a syntax error, text behind the value, or a key given twice in one object.
nlohmann::json parse_json(std::string_view text, const std::string& place, Comments comments = Comments::refused);

/// The same of a file, which is named when it is missing, empty or no regular file.
nlohmann::json read_json_file(const std::string& path, Comments comments = Comments::refused);

/// A value as an error shows it, cut short when long.
std::string shown(const nlohmann::json& value);

} // namespace triax
