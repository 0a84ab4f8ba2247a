/* A library that registers functions when it is loaded, as --load-library promises. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct { int32_t type; uint32_t size; union { int64_t i; double f; void *p; } v; } Any;
typedef struct { const char *data; size_t size; } Bytes;
typedef int (*Call)(void *, const Any *, int32_t, Any *);

extern int TVMFFIFunctionCreate(void *self, Call call, void (*deleter)(void *), void **out);
extern int TVMFFIFunctionSetGlobal(const Bytes *name, void *function, int override);
extern int TVMFFIObjectDecRef(void *object);
extern void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);

static int plus(void *self, const Any *args, int32_t count, Any *result) {
  result->type = 1;
  result->v.i = args[0].v.i + (int64_t)(intptr_t)self;
  return 0;
}

static int adder(void *self, const Any *args, int32_t count, Any *result) {
  result->type = 68;
  return TVMFFIFunctionCreate((void *)(intptr_t)args[0].v.i, plus, NULL, &result->v.p);
}

static int fail(void *self, const Any *args, int32_t count, Any *result) {
  TVMFFIErrorSetRaisedFromCStr("ValueError", "what went wrong");
  return -1;
}

static void add(const char *name, Call call, void *self) {
  Bytes text = {name, strlen(name)};
  void *function;
  if (TVMFFIFunctionCreate(self, call, NULL, &function)) return;
  TVMFFIFunctionSetGlobal(&text, function, 1);
  TVMFFIObjectDecRef(function);
}

__attribute__((constructor)) static void start(void) {
  add("lab.plus_one", plus, (void *)1);
  add("lab.adder", adder, NULL);
  add("lab.fail", fail, NULL);
}
