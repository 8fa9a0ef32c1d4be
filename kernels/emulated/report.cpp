// Says which kernel, block, thread and line. Lines are looked up by addr2line, which is there wherever g++ is.
#include "kernels/check.h"
#include "kernels/emulated/block.h"
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <link.h>
#include <memory>

namespace triax::emulation {
namespace {

/// What addr2line says of addresses of this program, or of one library of its own: lines of a function and its place,
/// with `options` beside the usual ones.
std::vector<std::string> look_up(const std::vector<const void*>& addresses, const char* options) {
  Dl_info info{};
  link_map* map = nullptr;
  if (addresses.empty() || !dladdr1(addresses[0], &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) || !map)
    return {};
  const std::string file = map->l_name && *map->l_name ? map->l_name : "/proc/self/exe";
  const std::string resolved = std::unique_ptr<char, decltype(&free)>(realpath(file.c_str(), nullptr), &free).get();
  std::string command = concat("addr2line -Cf", options, "e '", resolved, "'");
  for (const void* address : addresses)
    command += concat(" 0x", std::hex, reinterpret_cast<uintptr_t>(address) - map->l_addr);
  command += " 2>/dev/null";
  std::vector<std::string> lines;
  const std::unique_ptr<FILE, int (*)(FILE*)> out(popen(command.c_str(), "r"), pclose);
  std::array<char, 2048> line;
  while (out && fgets(line.data(), int(line.size()), out.get())) {
    lines.emplace_back(line.data());
    lines.back().erase(std::min(lines.back().find_last_not_of('\n') + 1, lines.back().size()));
  }
  return lines;
}
/// Innermost first, where calls were inlined.
std::vector<std::string> look_up(const void* address) { return look_up({address}, "i"); }

/// Without arguments, template arguments and namespaces.
std::string short_name(std::string name) {
  for (const char* noise : {"(anonymous namespace)::", "triax::", "void "})
    for (size_t at; (at = name.find(noise)) != std::string::npos;) name.erase(at, std::string(noise).size());
  return name.substr(0, std::min(name.find_first_of("<("), name.size()));
}

/// As seen from the root of the tree.
std::string short_place(std::string place) {
  const std::string root = TRIAX_SOURCE_DIR "/";
  if (place.compare(0, root.size(), root) == 0) place.erase(0, root.size());
  return place.substr(0, place.find(" (discriminator"));
}

std::string triple(const uint3& v) { return concat("(", v.x, ", ", v.y, ", ", v.z, ")"); }

} // namespace

std::string name_of_kernel() {
  const auto lines = look_up(block.kernel.function);
  return lines.empty() ? "an unknown kernel" : short_name(lines[0]);
}

std::vector<std::string> names_of_functions(const std::vector<const void*>& functions) {
  const std::vector<std::string> lines = look_up(functions, "");
  std::vector<std::string> names(functions.size(), "an unknown kernel");
  for (size_t i = 0; i < names.size() && 2 * i < lines.size(); ++i) names[i] = lines[2 * i];
  return names;
}

std::string where() {
  if (!block.current) return "no kernel";
  return concat("kernel ", name_of_kernel(), ", block ", triple(registers.blockIdx), ", thread ",
                triple(block.current->index));
}

std::string name_of(const Place& place) { return short_place(concat(place.file, ":", place.line)); }

std::string source_of(const void* caller) {
  const auto lines = look_up(static_cast<const char*>(caller) - 1); // the call, not what follows it
  std::string text;
  for (size_t i = 0; i + 1 < lines.size(); i += 2)
    text += concat(i ? " < " : "", short_place(lines[i + 1]), i ? "" : concat(" (", short_name(lines[i]), ")"));
  return text.empty() ? kUnknownLine : text;
}

} // namespace triax::emulation

// Called by the sanitizers before they report.
extern "C" {
__attribute__((visibility("default"))) void __asan_on_error() {
  if (triax::emulation::block.current) fprintf(stderr, "emulation: %s\n", triax::emulation::where().c_str());
}
__attribute__((visibility("default"))) void __ubsan_on_report() { __asan_on_error(); }
__attribute__((visibility("default"))) const char* __ubsan_default_options() { return "print_stacktrace=1"; }
}
