// Streams behind base64, by tvm-ffi's own.
#pragma once
#include <tvm/ffi/extra/base64.h>

#include <optional>
#include <string>

#include "bytes_io.h"

namespace tvm {
namespace support {

class Base64OutStream : public BytesOutStream {
 public:
  explicit Base64OutStream(Stream* to) : BytesOutStream(&plain_), encoded_(to) {}
  void Finish() {
    ffi::String text = ffi::Base64Encode(ffi::Bytes(plain_));
    encoded_->Write(text.data(), text.size());
  }

 private:
  std::string plain_;
  Stream* encoded_;
};

class Base64InStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;
  explicit Base64InStream(Stream* from) : encoded_(from) {}
  void InitPosition() {
    std::string text;
    char letter;
    while (encoded_->Read(&letter, 1) == 1) text.push_back(letter);
    plain_ = ffi::Base64Decode(ffi::String(text));
    decoded_.emplace(plain_);
  }
  size_t Read(void* to, size_t size) override { return decoded_->Read(to, size); }
  size_t Write(const void*, size_t) override { return 0; }

 private:
  Stream* encoded_;
  ffi::Bytes plain_;
  std::optional<BytesInStream> decoded_;
};

}  // namespace support
}  // namespace tvm
