// A device server without Python: TVM's runtime serves its sessions, by its loop or by another program of TVM's.
//
//   server tracker ADDRESS PORT KEY [PROGRAM]   listens on a free port, and offers itself at the tracker
//   server proxy ADDRESS PORT KEY [PROGRAM]     waits at the proxy
//
// Each session has a process of its own. PROGRAM, with the connection's descriptor as both its arguments, serves the
// session instead of TVM's loop. What it sends a tracker is what TVM's server in C++ sends: its port as a string of
// digits, match keys of six digits, and a question for its match keys while nothing comes.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>

namespace ffi = tvm::ffi;

constexpr int32_t kSession = 0xff271, kMismatch = 0xff273, kTracker = 0x2f271;
constexpr int32_t kMostBytes = 1 << 20;  // of one message to this server
constexpr int kPollMs = 500;

struct Closed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Connection {
  int fd;

  void Send(const void* data, size_t size) {
    for (size_t done = 0; done < size;) {
      ssize_t sent = send(fd, static_cast<const char*>(data) + done, size - done, MSG_NOSIGNAL);
      if (sent <= 0) throw Closed("send");
      done += sent;
    }
  }
  void Receive(void* data, size_t size) {
    for (size_t done = 0; done < size;) {
      ssize_t got = recv(fd, static_cast<char*>(data) + done, size - done, 0);
      if (got <= 0) throw Closed("receive");
      done += got;
    }
  }
  void SendNumber(int32_t number) { Send(&number, sizeof(number)); }
  int32_t ReceiveNumber() {
    int32_t number;
    Receive(&number, sizeof(number));
    return number;
  }
  void SendText(const std::string& text) {
    SendNumber(static_cast<int32_t>(text.size()));
    Send(text.data(), text.size());
  }
  std::string ReceiveText() {
    int32_t size = ReceiveNumber();
    if (size < 0 || size > kMostBytes) throw Closed("length");
    std::string text(size, '\0');
    Receive(text.data(), text.size());
    return text;
  }
  std::string Ask(const std::string& message) {
    SendText(message);
    return ReceiveText();
  }
};

Connection Connect(const char* address, int port) {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, address, &place.sin_addr);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&place), sizeof(place)) != 0) throw Closed("connect");
  return {fd};
}

int Listen(int* port) {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(place);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(fd, reinterpret_cast<sockaddr*>(&place), size) != 0 || listen(fd, 16) != 0) throw Closed("listen");
  getsockname(fd, reinterpret_cast<sockaddr*>(&place), &size);
  *port = ntohs(place.sin_port);
  return fd;
}

// Serve one session in this process.
void Serve(int fd, const char* program) {
  if (program != nullptr) {
    std::string number = std::to_string(fd);
    fcntl(fd, F_SETFD, 0);
    execl(program, program, number.c_str(), number.c_str(), nullptr);
    _exit(127);
  }
  std::string pattern = (std::filesystem::temp_directory_path() / "session-XXXXXX").string();
  std::filesystem::path folder = mkdtemp(pattern.data());
  auto path = [folder](ffi::String name) -> ffi::String { return (folder / std::string(name)).string(); };
  auto load = [path](ffi::String name) { return ffi::Module::LoadFromFile(path(name)); };
  ffi::Function::SetGlobal("tvm.rpc.server.workpath", ffi::Function::FromTyped(path));
  ffi::Function::SetGlobal("tvm.rpc.server.load_module", ffi::Function::FromTyped(load));
  try {
    ffi::Function::GetGlobalRequired("rpc.ServerLoop")(fd);
  } catch (const std::exception& error) {
    fprintf(stderr, "session: %s\n", error.what());
  }
  std::filesystem::remove_all(folder);
  _exit(0);
}

// Serve one session in a process of its own, for at most the seconds in the client's options (0: any time).
void Session(int fd, const std::string& options, const char* program) {
  size_t place = options.find("-timeout=");
  double limit_s = place == std::string::npos ? 0 : atof(options.c_str() + place + 9);
  pid_t child = fork();
  if (child == 0) {
    if (limit_s > 0) alarm(static_cast<unsigned>(limit_s));  // it ends the process
    Serve(fd, program);
  }
  close(fd);
  waitpid(child, nullptr, 0);
}

// The options that follow the key in a client's opening; throws where the key is another one.
std::string Opened(Connection client, const std::string& key, const std::string& match_key) {
  if (client.ReceiveNumber() != kSession) throw Closed("no client");
  std::istringstream said(client.ReceiveText());
  std::string name, options;
  said >> name;
  std::getline(said, options);
  if (name != "client:" + match_key) {
    client.SendNumber(kMismatch);
    throw Closed("another key");
  }
  client.SendNumber(kSession);
  client.SendText("server:" + key);
  return options;
}

void AtTracker(Connection tracker, const std::string& key, const char* program) {
  int port;
  int listening = Listen(&port);
  std::mt19937 random(std::random_device{}());
  tracker.SendNumber(kTracker);
  if (tracker.ReceiveNumber() != kTracker) throw Closed("no tracker");
  tracker.Ask("[5, {\"key\": \"server:" + key + "\", \"addr\": [null, \"" + std::to_string(port) + "\"]}]");
  while (true) {
    std::string match_key = key + ":" + std::to_string(std::uniform_real_distribution<float>()(random));
    tracker.Ask("[3, \"" + key + "\", [" + std::to_string(port) + ", \"" + match_key + "\"], null]");
    for (bool served = false; !served;) {
      pollfd waiting{listening, POLLIN, 0};
      if (poll(&waiting, 1, kPollMs) == 0) {
        tracker.Ask("[7]");
        continue;
      }
      Connection client{accept4(listening, nullptr, nullptr, SOCK_CLOEXEC)};
      try {
        Session(client.fd, Opened(client, key, match_key), program);
        served = true;
      } catch (const Closed& error) {
        fprintf(stderr, "client: %s\n", error.what());
        close(client.fd);
      }
    }
  }
}

void AtProxy(const char* address, int port, const std::string& key, const char* program) {
  while (true) {
    Connection proxy = Connect(address, port);
    proxy.SendNumber(kSession);
    proxy.SendText("server:" + key);
    if (proxy.ReceiveNumber() != kSession) throw Closed("the proxy refuses");
    Session(proxy.fd, proxy.ReceiveText(), program);
  }
}

int main(int count, char** words) {
  if (count < 5) return 2;
  const char* program = count > 5 ? words[5] : nullptr;
  try {
    if (std::string(words[1]) == "proxy") AtProxy(words[2], atoi(words[3]), words[4], program);
    AtTracker(Connect(words[2], atoi(words[3])), words[4], program);
  } catch (const Closed& error) {
    fprintf(stderr, "server: %s\n", error.what());
  }
  return 1;
}
