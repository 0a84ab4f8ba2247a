/* A bare relay: what one thread reaches that copies each byte twice, with recv and send.
 *
 *     relay LISTENER PORT
 *
 * Each connection of LISTENER, the descriptor of a listening socket, is joined to 127.0.0.1:PORT. The sockets have the
 * options of rpcsys.link.tcp.tune. A send waits for its receiver, and all other pairs with it, so the ends must read at
 * all times. The end of either stream closes both.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER = 1 << 20, ROUNDS = 8, PAIRS = 64 };

/* It begins at a page's start, as our proxy's does: some processors copy slowly otherwise. */
static _Alignas(4096) char buffer[BUFFER];

/* The listener, then the two ends of each pair. */
static struct pollfd watched[1 + 2 * PAIRS];
static int count = 1;

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static void tune(int sock) {
  static const struct { int level, name, value; } options[] = {
      {SOL_SOCKET, SO_KEEPALIVE, 1},      {IPPROTO_TCP, TCP_NODELAY, 1},
      {IPPROTO_TCP, TCP_KEEPIDLE, 5},     {IPPROTO_TCP, TCP_KEEPINTVL, 3},
      {IPPROTO_TCP, TCP_KEEPCNT, 3},      {IPPROTO_TCP, TCP_USER_TIMEOUT, 14000},
      {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 64 << 10},
  };
  for (size_t i = 0; i < sizeof options / sizeof *options; i++)
    if (setsockopt(sock, options[i].level, options[i].name, &options[i].value, sizeof(int))) fail("setsockopt");
  if (setsockopt(sock, IPPROTO_TCP, TCP_CONGESTION, "reno", 4)) fail("setsockopt TCP_CONGESTION");
}

static int dial(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int sock = socket(AF_INET, SOCK_STREAM, 0);
  if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address)) fail("connect");
  return sock;
}

/* Join a new connection to the target. */
static void join(int port) {
  errno = EMFILE;
  int accepted = count < 1 + 2 * PAIRS ? accept(watched[0].fd, NULL, NULL) : -1;
  if (accepted < 0) fail("accept");
  int ends[] = {accepted, dial(port)};
  for (int i = 0; i < 2; i++) {
    tune(ends[i]);
    watched[count++] = (struct pollfd){.fd = ends[i], .events = POLLIN};
  }
}

/* Close a pair; the last one takes its place. */
static void part(int first) {
  close(watched[first].fd);
  close(watched[first + 1].fd);
  count -= 2;
  watched[first] = watched[count];
  watched[first + 1] = watched[count + 1];
}

/* Send all bytes; whether the sink took them. */
static int send_all(int sink, const char *data, ssize_t left) {
  while (left > 0) {
    ssize_t sent = send(sink, data, left, MSG_NOSIGNAL);
    if (sent < 0) return 0;
    data += sent;
    left -= sent;
  }
  return 1;
}

/* Pass on what has arrived; whether the stream goes on. */
static int pump(int source, int sink) {
  for (int i = 0; i < ROUNDS; i++) {
    ssize_t got = recv(source, buffer, BUFFER, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN;
    if (got == 0 || !send_all(sink, buffer, got)) return 0;
  }
  return 1;
}

static int passed_on(const struct pollfd *source, const struct pollfd *sink) {
  return !source->revents || pump(source->fd, sink->fd);
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fputs("usage: relay LISTENER PORT\n", stderr);
    return 2;
  }
  watched[0] = (struct pollfd){.fd = atoi(argv[1]), .events = POLLIN};
  for (;;) {
    if (poll(watched, count, -1) < 0) fail("poll");
    for (int first = count - 2; first > 0; first -= 2) {
      struct pollfd *left = &watched[first], *right = left + 1;
      if (!passed_on(left, right) || !passed_on(right, left)) part(first);
    }
    if (watched[0].revents) join(atoi(argv[2]));
  }
}
