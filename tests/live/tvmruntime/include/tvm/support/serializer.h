// How values are written: plain ones as they lie in a little-endian memory, others behind a 64-bit count.
#pragma once
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tvm {
namespace support {

template <typename T>
struct Serializer<T, std::enable_if_t<std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>>> {
  static void Write(Stream* stream, const T& value) { stream->Write(&value, sizeof(T)); }
  static bool Read(Stream* stream, T* value) { return stream->Read(value, sizeof(T)) == sizeof(T); }
};

// A file tells how many: nothing is taken for them before they are there.
template <typename T, typename Add>
bool ReadCounted(Stream* stream, Add add) {
  uint64_t count;
  if (!stream->Read(&count)) return false;
  for (uint64_t i = 0; i < count; ++i) {
    T value{};
    if (!stream->Read(&value)) return false;
    add(std::move(value));
  }
  return true;
}

template <typename T>
struct Serializer<std::vector<T>> {
  static void Write(Stream* stream, const std::vector<T>& values) {
    stream->Write(static_cast<uint64_t>(values.size()));
    for (const T& value : values) stream->Write(value);
  }
  static bool Read(Stream* stream, std::vector<T>* values) {
    values->clear();
    return ReadCounted<T>(stream, [&](T value) { values->push_back(std::move(value)); });
  }
};

template <>
struct Serializer<std::string> {
  static void Write(Stream* stream, const std::string& text) {
    stream->Write(static_cast<uint64_t>(text.size()));
    stream->Write(text.data(), text.size());
  }
  static bool Read(Stream* stream, std::string* text) {
    text->clear();
    return ReadCounted<char>(stream, [&](char letter) { text->push_back(letter); });
  }
};

template <>
struct Serializer<ffi::String> {
  static void Write(Stream* stream, const ffi::String& text) { stream->Write(std::string(text)); }
  static bool Read(Stream* stream, ffi::String* text) {
    std::string read;
    if (!stream->Read(&read)) return false;
    *text = ffi::String(std::move(read));
    return true;
  }
};

template <typename T>
struct Serializer<ffi::Array<T>> {
  static void Write(Stream* stream, const ffi::Array<T>& values) {
    stream->Write(static_cast<uint64_t>(values.size()));
    for (const T& value : values) stream->Write(value);
  }
  static bool Read(Stream* stream, ffi::Array<T>* values) {
    values->clear();
    return ReadCounted<T>(stream, [&](T value) { values->push_back(std::move(value)); });
  }
};

}  // namespace support
}  // namespace tvm
