/* Functions of the TVM-FFI ABI for the tests; its structures are defined here again, as an independent check. */
#include <stddef.h>
#include <stdint.h>

typedef struct { int32_t type; uint32_t size; union { int64_t i; double f; void *p; } v; } Any;
typedef struct { uint64_t counts; int32_t type; uint32_t pad; union { void *deleter; int64_t width; }; } Object;
typedef struct {
  void *data;
  struct { int32_t type, id; } device;
  int32_t ndim;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;

extern void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);

static Tensor *tensor(const Any *any) {
  if (any->type == 7) return any->v.p;
  if (any->type == 70) return (Tensor *)((Object *)any->v.p + 1);
  return NULL;
}

static int fail(const char *message) {
  TVMFFIErrorSetRaisedFromCStr("ValueError", message);
  return -1;
}

/* double_it(x, y): y = 2 x, float32; written so that the compiler relies on the 64-byte boundary. */
typedef float Vector __attribute__((vector_size(64)));
int __tvm_ffi_double_it(void *self, const Any *args, int32_t count, Any *result) {
  Tensor *x = count == 2 ? tensor(args) : NULL, *y = count == 2 ? tensor(args + 1) : NULL;
  if (!x || !y) return fail("double_it takes two arrays");
  int64_t length = 1;
  for (int i = 0; i < x->ndim; i++) length *= x->shape[i];
  Vector *from = x->data, *to = y->data;
  for (int64_t i = 0; i < length / 16; i++) to[i] = from[i] + from[i];
  return 0;
}

/* offset(x): its address modulo 64. */
int __tvm_ffi_offset(void *self, const Any *args, int32_t count, Any *result) {
  Tensor *x = tensor(args);
  if (!x) return fail("offset takes an array");
  result->type = 1;
  result->v.i = (int64_t)((uintptr_t)x->data % 64);
  return 0;
}

/* type(x): its type index. */
int __tvm_ffi_type(void *self, const Any *args, int32_t count, Any *result) {
  result->type = 1;
  result->v.i = args->type;
  return 0;
}

/* describe(x, y): y (int64) = ndim, code, bits, lanes, byte offset, device type, then shape and strides of x. */
int __tvm_ffi_describe(void *self, const Any *args, int32_t count, Any *result) {
  Tensor *x = tensor(args);
  int64_t *y = tensor(args + 1)->data;
  *y++ = x->ndim, *y++ = x->dtype.code, *y++ = x->dtype.bits, *y++ = x->dtype.lanes;
  *y++ = (int64_t)x->byte_offset, *y++ = x->device.type;
  for (int i = 0; i < x->ndim; i++) *y++ = x->shape[i];
  for (int i = 0; i < x->ndim; i++) *y++ = x->strides[i];
  return 0;
}

/* add(a, b): ints or floats. */
int __tvm_ffi_add(void *self, const Any *args, int32_t count, Any *result) {
  if (count != 2 || args[0].type != args[1].type) return fail("add takes two numbers of one type");
  result->type = args->type;
  if (args->type == 3) result->v.f = args[0].v.f + args[1].v.f;
  else result->v.i = args[0].v.i + args[1].v.i;
  return 0;
}

/* silent(): fails without an error message. */
int __tvm_ffi_silent(void *self, const Any *args, int32_t count, Any *result) { return -1; }
