// A setting: a name, a member of some struct, a sentence, limits. Everything done to a configuration - reading JSON,
// `--set`, printing, help - is a loop over a list of these, so a field is written once.
#pragma once
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace triax {

/// Closed limits of a number; `open_low` excludes `low` itself, `open_high` excludes `high`. A double is used as a
/// float, so its limits hold for both: 1e-50 is not above 0, 1e300 not finite, 1 - 1e-12 not below 1.
struct Limits {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool open_low = false, open_high = false;
};
inline Limits at_least(double low) { return {.low = low}; }
inline Limits above(double low) { return {.low = low, .open_low = true}; }
inline Limits from_to(double low, double high) { return {.low = low, .high = high}; }
inline Limits from_below(double low, double high) { return {.low = low, .high = high, .open_high = true}; }

/// An enum's member seen through the list of its names.
struct Choice {
  std::span<const char* const> names;
  std::function<int()> get;
  std::function<void(int)> set;
};
/// `names(E)` gives the names in the order of the enumerators.
template <class E> Choice choice(E& e) {
  return {names(E{}), [&e] { return int(e); }, [&e](int i) { e = E(i); }};
}

struct Setting {
  std::string key; ///< "train.steps"
  std::variant<int64_t*, double*, bool*, std::string*, Choice> member;
  std::string sentence;
  Limits limits = {};
};

using Origins = std::map<std::string, std::string>;

/// `a.b=c` taken apart. The last of two with one key wins. Throws on a missing `=` or key.
std::map<std::string, std::string> parse_sets(const std::vector<std::string>& sets);

/// Assigns every leaf of `document` (nested objects or dotted names alike) to the setting of that key and writes
/// `place` as its origin. Throws with place, key and value on an unknown key (naming the nearest), a wrong type or a
/// number outside the limits.
void read_settings(const std::vector<Setting>& settings, const nlohmann::json& document, const std::string& place,
                   Origins& origin);

/// The same from the texts of `--set`, each parsed as the type of its member.
void read_settings(const std::vector<Setting>& settings, const std::map<std::string, std::string>& texts,
                   Origins& origin);

/// Throws when a number lies outside its limits.
void check_limits(const std::vector<Setting>& settings);

/// Nested objects, in the order of the list.
nlohmann::ordered_json settings_json(const std::vector<Setting>& settings);

std::string value_text(const Setting& setting); ///< as `--set` takes it
std::string type_text(const Setting& setting);  ///< "whole number", "rms or layer", ...
std::string limits_text(const Limits& limits);  ///< "at least 1", "at least 0 and below 1", ...; empty when unlimited

} // namespace triax
