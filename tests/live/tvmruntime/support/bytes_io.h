// Streams from and to memory.
#pragma once
#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace tvm {
namespace support {

class BytesInStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;
  template <typename Bytes>
  explicit BytesInStream(const Bytes& bytes) : from_(bytes.data()), left_(bytes.size()) {}
  size_t Read(void* to, size_t size) override {
    size = std::min(size, left_);
    if (size != 0) std::memcpy(to, from_, size);
    from_ += size;
    left_ -= size;
    return size;
  }
  size_t Write(const void*, size_t) override { return 0; }

 private:
  const char* from_;
  size_t left_;
};

class BytesOutStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;
  explicit BytesOutStream(std::string* to) : to_(to) {}
  size_t Read(void*, size_t) override { return 0; }
  size_t Write(const void* from, size_t size) override {
    to_->append(static_cast<const char*>(from), size);
    return size;
  }

 private:
  std::string* to_;
};

}  // namespace support
}  // namespace tvm
