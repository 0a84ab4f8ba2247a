/* Faults of users' code in a session process, as TVM-FFI functions: the prefix and a name, the parameters
 * (self, arguments, their number, result), 0 for success. tests/live/session_faults.py has the same functions. */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
  int32_t type_index; /* 1: an integer */
  uint32_t unused;
  int64_t integer;
} any;

#define EXPORT(name) int __tvm_ffi_##name(void *self, const any *args, int32_t count, any *result)

static int answer(any *result, int64_t value) {
  result->type_index = 1;
  result->unused = 0;
  result->integer = value;
  return 0;
}

static void linger(void) {
  signal(SIGTERM, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  for (;;) sleep(1);
}

EXPORT(pid) { return answer(result, getpid()); }

EXPORT(crash) {
  *(volatile int *)0 = 1;
  return 0;
}

EXPORT(leave) { exit(3); }

EXPORT(nap) {
  for (;;) sleep(1);
}

EXPORT(spin) {
  for (volatile long i = 0;; i++) {
  }
}

EXPORT(hold_gil) { return __tvm_ffi_spin(self, args, count, result); }

EXPORT(allocate) {
  for (;;) memset(malloc(1 << 20), 1, 1 << 20);
}

EXPORT(spawn) {
  pid_t child = fork();
  if (child == 0) linger();
  return answer(result, child);
}

EXPORT(daemonise) {
  int ends[2];
  pid_t grandchild = 0;
  if (pipe(ends) != 0) return -1;
  pid_t child = fork();
  if (child == 0) {
    setsid();
    grandchild = fork();
    if (grandchild == 0) linger();
    _exit(write(ends[1], &grandchild, sizeof grandchild) != sizeof grandchild);
  }
  waitpid(child, NULL, 0);
  if (read(ends[0], &grandchild, sizeof grandchild) != sizeof grandchild) return -1;
  return answer(result, grandchild);
}
