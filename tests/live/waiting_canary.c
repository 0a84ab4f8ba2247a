/* A canary whose work takes as many microseconds as the file FILE says, whatever else this machine does. */
#include <stdint.h>
#include <stdio.h>
#include <time.h>

typedef struct { int32_t type; uint32_t size; int64_t value; } Any;

int __tvm_ffi_canary(void *self, const Any *args, int32_t count, Any *result) {
  long wait = 0;
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  FILE *file = fopen(FILE_NAME, "r");
  if (file == NULL || fscanf(file, "%ld", &wait) != 1) return -1;
  fclose(file);
  until.tv_nsec += wait * 1000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) {}
  result->type = 0;
  return 0;
}
