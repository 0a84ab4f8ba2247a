// Streams of bytes, and of values as `Serializer` writes them.
#pragma once
#include <cstddef>

namespace tvm {
namespace support {

template <typename T, typename = void>
struct Serializer;

class Stream {
 public:
  virtual ~Stream() = default;
  virtual size_t Read(void* to, size_t size) = 0;
  virtual size_t Write(const void* from, size_t size) = 0;

  template <typename T>
  void Write(const T& value) {
    Serializer<T>::Write(this, value);
  }
  template <typename T>
  bool Read(T* value) {
    return Serializer<T>::Read(this, value);
  }
  template <typename T>
  void WriteArray(const T* values, size_t count) {
    for (size_t i = 0; i < count; ++i) Write(values[i]);
  }
  template <typename T>
  bool ReadArray(T* values, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (!Read(&values[i])) return false;
    }
    return true;
  }
};

}  // namespace support
}  // namespace tvm
