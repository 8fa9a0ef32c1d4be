// How a place in the source is written.
#pragma once
#include <source_location>
#include <string>

namespace triax {

/// "model/decoder.cpp:97": the file without what lies before its layer's folder.
std::string text_of(const std::source_location& place);

} // namespace triax
