// Questions about text.
#pragma once
#include <algorithm>
#include <cctype>
#include <string>

namespace tvm {
namespace support {

inline bool StartsWith(const std::string& text, const char* begin) { return text.rfind(begin, 0) == 0; }

inline bool IsNumber(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

}  // namespace support
}  // namespace tvm
