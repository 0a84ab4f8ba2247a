// TCP over IPv4.
#pragma once
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace tvm {
namespace support {

struct SockAddr {
  sockaddr_in address{};

  SockAddr(const char* host, int port) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    TVM_FFI_ICHECK_EQ(getaddrinfo(host, nullptr, &hints, &found), 0) << "no such host: " << host;
    std::memcpy(&address, found->ai_addr, sizeof(address));
    freeaddrinfo(found);
    address.sin_port = htons(port);
  }
  int ss_family() const { return AF_INET; }
  std::string AsString() const {
    return std::string(inet_ntoa(address.sin_addr)) + ":" + std::to_string(ntohs(address.sin_port));
  }
};

class Socket {
 public:
  using SockType = int;
  explicit Socket(SockType socket = -1) : socket_(socket) {}
  static void Error(const char* what) { TVM_FFI_THROW(InternalError) << what << ": " << std::strerror(errno); }
  bool BadSocket() const { return socket_ < 0; }
  void Close() {
    if (!BadSocket()) close(socket_);
    socket_ = -1;
  }

 protected:
  SockType socket_;
};

class TCPSocket : public Socket {
 public:
  using Socket::Socket;
  void Create(int family) { socket_ = socket(family, SOCK_STREAM, 0); }
  bool Connect(const SockAddr& to) {
    return connect(socket_, reinterpret_cast<const sockaddr*>(&to.address), sizeof(to.address)) == 0;
  }
  ssize_t Send(const void* from, size_t size) {
    return Patiently([&] { return send(socket_, from, size, MSG_NOSIGNAL); });
  }
  ssize_t Recv(void* to, size_t size) {
    return Patiently([&] { return recv(socket_, to, size, 0); });
  }
  size_t SendAll(const void* from, size_t size) {
    return All(size, [&](size_t done) { return Send(static_cast<const char*>(from) + done, size - done); });
  }
  size_t RecvAll(void* to, size_t size) {
    return All(size, [&](size_t done) { return Recv(static_cast<char*>(to) + done, size - done); });
  }

 private:
  template <typename Call>
  static ssize_t Patiently(Call call) {
    ssize_t done;
    do done = call();
    while (done < 0 && errno == EINTR);
    return done;
  }
  template <typename Step>
  static size_t All(size_t size, Step step) {
    size_t done = 0;
    while (done < size) {
      ssize_t some = step(done);
      if (some <= 0) break;
      done += static_cast<size_t>(some);
    }
    return done;
  }
};

}  // namespace support
}  // namespace tvm
