#include "train/settings.h"
#include "kernels/check.h"
#include "model/sizes.h"
#include "train/json_file.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

namespace triax {

using json = nlohmann::json;

namespace {

template <class... F> struct Overloaded : F... { using F::operator()...; };
template <class... F> Overloaded(F...) -> Overloaded<F...>;

std::string joined(std::span<const char* const> names, const char* last) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? last : ", ") + std::string(names[i]);
  return text;
}

template <class T> bool parse_number(const std::string& text, T* value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end;
}

/// 1e6 is a whole number too, as long as a double holds it exactly.
bool whole(double value, int64_t* out) {
  if (!(std::abs(value) <= 9007199254740992.0) || value != std::floor(value)) return false;
  *out = int64_t(value);
  return true;
}

[[noreturn]] void refuse(const std::string& place, const Setting& setting, const std::string& value) {
  fail(concat(place, ": ", setting.key, " is ", value, ", but must be ", type_text(setting), " (", setting.sentence,
              ")"));
}

bool within(const Limits& l, double value) {
  const bool low = l.open_low ? value > l.low : value >= l.low;
  const bool high = l.open_high ? value < l.high : value <= l.high;
  return std::isfinite(value) && low && high;
}

void check_limits(const Setting& setting, const std::string& place) {
  double value = 0, used = 0;
  if (const auto* member = std::get_if<int64_t*>(&setting.member)) value = used = double(**member);
  if (const auto* member = std::get_if<double*>(&setting.member)) value = **member, used = double(float(value));
  if (!std::holds_alternative<int64_t*>(setting.member) && !std::holds_alternative<double*>(setting.member)) return;
  const Limits& l = setting.limits;
  const std::string wanted = std::isfinite(value) && std::isfinite(used) ? "" : "a finite number";
  DEMAND(within(l, value) && within(l, used), place, setting.key, " is ", value_text(setting),
         within(l, value) ? concat(" (", used, " in single precision, in which it is used)") : "", ", but must be ",
         wanted, wanted.empty() || limits_text(l).empty() ? "" : ", ", limits_text(l), " (", setting.sentence, ")");
}

/// Each stores a value of the member's type, or answers false.
bool store(int64_t* member, const json& value) {
  if (value.is_number_float()) return whole(value.get<double>(), member);
  if (!value.is_number() || (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX))) return false;
  *member = value.get<int64_t>();
  return true;
}
bool store(double* member, const json& value) {
  if (value.is_number()) *member = value.get<double>();
  return value.is_number();
}
bool store(bool* member, const json& value) {
  if (value.is_boolean()) *member = value.get<bool>();
  return value.is_boolean();
}
bool store(std::string* member, const json& value) {
  if (value.is_string()) *member = value.get<std::string>();
  return value.is_string();
}
bool store_text(const Choice& choice, const std::string& text) {
  const auto found = std::find(choice.names.begin(), choice.names.end(), text);
  if (found != choice.names.end()) choice.set(int(found - choice.names.begin()));
  return found != choice.names.end();
}
bool store(const Choice& choice, const json& value) {
  return value.is_string() && store_text(choice, value.get<std::string>());
}

bool store_text(int64_t* member, const std::string& text) {
  double real = 0;
  return parse_number(text, member) || (parse_number(text, &real) && whole(real, member));
}
bool store_text(double* member, const std::string& text) { return parse_number(text, member); }
bool store_text(bool* member, const std::string& text) {
  *member = text == "true";
  return *member || text == "false";
}
bool store_text(std::string* member, const std::string& text) {
  *member = text;
  const std::string clean = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  return json::parse(clean).get<std::string>() == text; // other bytes than UTF-8 could not be written to a file again
}

void assign(const Setting& setting, const json& value, const std::string& place) {
  if (!std::visit([&](auto& member) { return store(member, value); }, setting.member))
    refuse(place, setting, shown(value));
  check_limits(setting, place + ": ");
}

void assign_text(const Setting& setting, const std::string& text) {
  if (!std::visit([&](auto& member) { return store_text(member, text); }, setting.member))
    refuse("--set", setting, "\"" + text + "\"");
  check_limits(setting, "--set: ");
}

std::string leaf(const std::string& key) { return key.substr(key.rfind('.') + 1); } // npos + 1 is 0

bool is_group(const std::vector<Setting>& settings, const std::string& key) {
  return std::any_of(settings.begin(), settings.end(), [&](auto& s) { return s.key.rfind(key + ".", 0) == 0; });
}

/// By the whole key first ("train.step"), then by its last part ("lr"), then what the group has.
std::string suggestion(const std::vector<Setting>& settings, const std::string& key) {
  std::vector<std::string> keys, leaves;
  for (const Setting& setting : settings) keys.push_back(setting.key), leaves.push_back(leaf(setting.key));
  std::string nearest = nearest_name(key, keys);
  if (nearest.empty()) {
    const auto found = std::find(leaves.begin(), leaves.end(), nearest_name(leaf(key), leaves));
    if (found != leaves.end()) nearest = keys[size_t(found - leaves.begin())];
  }
  if (!nearest.empty()) return "; did you mean \"" + nearest + "\"?";
  std::string list;
  const std::string group = key.substr(0, key.find('.')) + ".";
  for (const std::string& known : keys)
    if (known.rfind(group, 0) == 0) list += (list.empty() ? "" : ", ") + known;
  return list.empty() ? "; `triax help config` lists all" : "; known are " + list;
}

[[noreturn]] void refuse_key(const std::vector<Setting>& settings, const std::string& place, const std::string& key,
                             const std::string& value) {
  fail(concat(place, ": unknown key \"", key, "\" (value ", value, ")", suggestion(settings, key)));
}

const Setting* find_setting(const std::vector<Setting>& settings, const std::string& key) {
  const auto found = std::find_if(settings.begin(), settings.end(), [&](auto& s) { return s.key == key; });
  return found == settings.end() ? nullptr : &*found;
}

void read_object(const std::vector<Setting>& settings, const json& object, const std::string& prefix,
                 const std::string& place, std::set<std::string>& seen, Origins& origin) {
  for (const auto& [name, value] : object.items()) {
    const std::string key = prefix.empty() ? name : prefix + "." + name;
    if (const Setting* setting = find_setting(settings, key)) {
      DEMAND(seen.insert(key).second, place, ": ", key, " is given twice, nested and with dots");
      assign(*setting, value, place);
      origin[key] = place;
    } else {
      if (!is_group(settings, key)) refuse_key(settings, place, key, shown(value));
      DEMAND(value.is_object(), place, ": ", key, " is ", shown(value), ", but must be an object of settings");
      read_object(settings, value, key, place, seen, origin);
    }
  }
}

} // namespace

std::map<std::string, std::string> parse_sets(const std::vector<std::string>& sets) {
  std::map<std::string, std::string> texts;
  for (const std::string& set : sets) {
    const size_t equals = set.find('=');
    DEMAND(equals != std::string::npos && equals > 0, "--set ", set,
           ": must be KEY=VALUE, as in --set train.steps=100");
    texts[set.substr(0, equals)] = set.substr(equals + 1);
  }
  return texts;
}

void read_settings(const std::vector<Setting>& settings, const json& document, const std::string& place,
                   Origins& origin) {
  DEMAND(document.is_object(), place, ": holds ", shown(document), ", but must be an object of settings");
  std::set<std::string> seen;
  read_object(settings, document, "", place, seen, origin);
}

void read_settings(const std::vector<Setting>& settings, const std::map<std::string, std::string>& texts,
                   Origins& origin) {
  for (const auto& [key, text] : texts) {
    const Setting* setting = find_setting(settings, key);
    DEMAND(setting || !is_group(settings, key), "--set: ", key,
           " is a group of settings: set one of its members, as in ", key, ".NAME=VALUE");
    if (!setting) refuse_key(settings, "--set", key, "\"" + text + "\"");
    assign_text(*setting, text);
    origin[key] = "--set";
  }
}

void check_limits(const std::vector<Setting>& settings) {
  for (const Setting& setting : settings) check_limits(setting, "");
}

nlohmann::ordered_json settings_json(const std::vector<Setting>& settings) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const Setting& setting : settings) {
    nlohmann::ordered_json* at = &out;
    std::string rest = setting.key;
    for (size_t dot; (dot = rest.find('.')) != std::string::npos; rest = rest.substr(dot + 1))
      at = &(*at)[rest.substr(0, dot)];
    std::visit(Overloaded{[&](const Choice& choice) { (*at)[rest] = choice.names[size_t(choice.get())]; },
                          [&](auto* member) { (*at)[rest] = *member; }},
               setting.member);
  }
  return out;
}

std::string value_text(const Setting& setting) {
  return std::visit(
      Overloaded{[](int64_t* member) { return std::to_string(*member); },
                 [](double* member) { return std::isfinite(*member) ? json(*member).dump() : concat(*member); },
                 [](bool* member) { return std::string(*member ? "true" : "false"); },
                 [](std::string* member) { return *member; },
                 [](const Choice& choice) { return std::string(choice.names[size_t(choice.get())]); }},
      setting.member);
}

std::string type_text(const Setting& setting) {
  return std::visit(Overloaded{[](int64_t*) { return std::string("a whole number"); },
                               [](double*) { return std::string("a number"); },
                               [](bool*) { return std::string("true or false"); },
                               [](std::string*) { return std::string("a string (UTF-8)"); },
                               [](const Choice& choice) { return joined(choice.names, " or "); }},
                    setting.member);
}

std::string limits_text(const Limits& limits) {
  std::string text;
  if (std::isfinite(limits.low)) text = concat(limits.open_low ? "above " : "at least ", limits.low);
  if (std::isfinite(limits.high))
    text += concat(text.empty() ? "" : " and ", limits.open_high ? "below " : "at most ", limits.high);
  return text;
}

} // namespace triax
