// Memory that is given back all at once.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

namespace tvm {
namespace support {

class Arena {
 public:
  template <typename T>
  T* allocate_(int count = 1) {
    // operator new[] of bytes is aligned for any plain type.
    blocks_.push_back(std::make_unique<std::byte[]>(sizeof(T) * static_cast<size_t>(count)));
    return reinterpret_cast<T*>(blocks_.back().get());
  }
  void RecycleAll() { blocks_.clear(); }

 private:
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

}  // namespace support
}  // namespace tvm
