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
  void FreeAll() { blocks_.clear(); }

 private:
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

// What a caller's own source of pages fills in.
struct ArenaPageHeader {
  size_t size, offset;
};

// The caller's source of pages is not used.
template <typename Pages>
class GenericArena : public Arena {
 public:
  explicit GenericArena(Pages) {}
};

}  // namespace support
}  // namespace tvm
