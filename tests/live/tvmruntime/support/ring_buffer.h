// A queue of bytes.
#pragma once
#include <cstddef>
#include <cstring>
#include <vector>

namespace tvm {
namespace support {

class RingBuffer {
 public:
  size_t bytes_available() const { return end_ - begin_; }

  // Room for `size` bytes behind those that are there.
  void Reserve(size_t size) {
    if (begin_ == end_) begin_ = end_ = 0;
    if (bytes_.size() - end_ >= size) return;
    std::memmove(bytes_.data(), bytes_.data() + begin_, bytes_available());
    end_ -= begin_;
    begin_ = 0;
    if (bytes_.size() - end_ < size) bytes_.resize(end_ + size);
  }

  void Write(const void* from, size_t size) {
    Reserve(size);
    std::memcpy(bytes_.data() + end_, from, size);
    end_ += size;
  }
  void Read(void* to, size_t size) {
    std::memcpy(to, bytes_.data() + begin_, size);
    begin_ += size;
  }

  // `send(data, size)` and `receive(data, size)` tell how many bytes they took or gave.
  template <typename Send>
  size_t ReadWithCallback(Send send, size_t size) {
    size_t sent = send(bytes_.data() + begin_, size < bytes_available() ? size : bytes_available());
    begin_ += sent;
    return sent;
  }
  template <typename Receive>
  size_t WriteWithCallback(Receive receive, size_t size) {
    Reserve(size);
    size_t received = receive(bytes_.data() + end_, size);
    end_ += received;
    return received;
  }

 private:
  std::vector<char> bytes_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace support
}  // namespace tvm
