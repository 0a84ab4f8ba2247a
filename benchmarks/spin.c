/* Functions of the TVM-FFI ABI that keep a CPU busy: `base`, and `slower` with 2 % more rounds of the same loop. */
#include <stdint.h>

#ifndef ROUNDS
#define ROUNDS 1000000 /* about 0.4 ms, of which calling it is 2 % */
#endif

static __attribute__((noinline)) void spin(int64_t rounds) {
  for (int64_t left = rounds; left; left--) __asm__ volatile("" ::: "memory");
}

int __tvm_ffi_base(void *self, const void *args, int32_t count, void *result) {
  spin(ROUNDS);
  return 0;
}

int __tvm_ffi_slower(void *self, const void *args, int32_t count, void *result) {
  spin(ROUNDS + ROUNDS / 50);
  return 0;
}
