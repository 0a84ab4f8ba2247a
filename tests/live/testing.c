/* TVM's rpc.test.* functions in native code, for servers without TVM's Python package. Loading the library
 * (--load-library) registers each function that is not registered yet. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tvm/ffi/c_api.h>

#define LENGTH 10
#define ROWS 3
#define COLUMNS 4

static TVMFFIByteArray text(const TVMFFIAny *value) {
  TVMFFIByteArray found = {"", 0};
  if (value->type_index == kTVMFFISmallStr) {
    found.data = value->v_bytes;
    found.size = value->small_str_len;
  } else if (value->type_index == kTVMFFIStr) {
    found = *(const TVMFFIByteArray *)(value->v_obj + 1);
  } else if (value->type_index == kTVMFFIRawStr) {
    found.data = value->v_c_str;
    found.size = strlen(value->v_c_str);
  }
  return found;
}

static const DLTensor *tensor(const TVMFFIAny *value) {
  if (value->type_index == kTVMFFITensor) return (const DLTensor *)(value->v_obj + 1);
  return value->type_index == kTVMFFIDLTensorPtr ? value->v_ptr : NULL;
}

static int fail(const char *kind, const char *message) {
  TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

static int give_int(TVMFFIAny *result, int64_t number) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = number;
  return 0;
}

static int give_function(TVMFFIAny *result, void *self, TVMFFISafeCallType call, void (*deleter)(void *)) {
  result->type_index = kTVMFFIFunction;
  return TVMFFIFunctionCreate(self, call, deleter, (TVMFFIObjectHandle *)&result->v_obj);
}

/* ---- rpc.test.addone, strcat, except, remote_tensor_func */

static int addone(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  return give_int(result, args[0].v_int64 + 1);
}

static int concatenate(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  char joined[256];
  TVMFFIByteArray name = text(&args[0]);
  int length = snprintf(joined, sizeof joined, "%.*s:%lld", (int)name.size, name.data, (long long)args[1].v_int64);
  TVMFFIByteArray whole = {joined, (size_t)length};
  return TVMFFIStringFromByteArray(&whole, result);
}

static int except(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  char message[256];
  TVMFFIByteArray name = text(&args[0]);
  snprintf(message, sizeof message, "%.*s", (int)name.size, name.data);
  return fail("ValueError", message);
}

static int all_ones(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  const DLTensor *given = tensor(&args[0]);
  if (given == NULL || given->ndim != 2 || given->shape[0] != ROWS || given->shape[1] != COLUMNS ||
      given->dtype.bits != 64)
    return fail("ValueError", "not the array that was sent");
  const double *numbers = (const double *)((const char *)given->data + given->byte_offset);
  for (int i = 0; i < ROWS * COLUMNS; i++)
    if (numbers[i] != 1.0) return fail("ValueError", "other numbers than were sent");
  return 0;
}

/* ---- rpc.test.add_to_lhs */

static int add_to(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  return give_int(result, *(int64_t *)self + args[0].v_int64);
}

static int add_to_lhs(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  int64_t *left = malloc(sizeof *left);
  *left = args[0].v_int64;
  return give_function(result, left, add_to, free);
}

/* ---- rpc.test.remote_return_nd: functions that hold an array */

static void release(DLManagedTensor *managed) {
  free(managed->dl_tensor.data);
  free(managed->dl_tensor.shape);
  free(managed);
}

static int zeros(TVMFFIObjectHandle *array) {
  DLManagedTensor *managed = calloc(1, sizeof *managed);
  managed->dl_tensor.data = aligned_alloc(64, 64);
  memset(managed->dl_tensor.data, 0, 64);
  managed->dl_tensor.shape = malloc(sizeof(int64_t));
  managed->dl_tensor.shape[0] = LENGTH;
  managed->dl_tensor.ndim = 1;
  managed->dl_tensor.dtype = (DLDataType){kDLFloat, 32, 1};
  managed->dl_tensor.device = (DLDevice){kDLCPU, 0};
  managed->deleter = release;
  return TVMFFITensorFromDLPack(managed, 0, 0, array);
}

static int get_array(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  result->type_index = kTVMFFITensor;
  result->v_obj = self;
  return TVMFFIObjectIncRef(self);
}

static int get_element(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  const DLTensor *array = (const DLTensor *)((TVMFFIObject *)self + 1);
  if (args[0].v_int64 < 0 || args[0].v_int64 >= LENGTH) return fail("IndexError", "no such element");
  result->type_index = kTVMFFIFloat;
  result->v_float64 = ((const float *)array->data)[args[0].v_int64];
  return 0;
}

static void let_go(void *array) { TVMFFIObjectDecRef(array); }

static int return_nd(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result) {
  TVMFFIObjectHandle array;
  if (zeros(&array)) return -1;
  TVMFFIByteArray name = text(&args[0]);
  int whole = name.size == 7 && !memcmp(name.data, "get_arr", 7);
  return give_function(result, array, whole ? get_array : get_element, let_go);
}

static void add(const char *name, TVMFFISafeCallType call) {
  TVMFFIByteArray called = {name, strlen(name)};
  TVMFFIObjectHandle function = NULL;
  TVMFFIFunctionGetGlobal(&called, &function);
  if (function == NULL && !TVMFFIFunctionCreate(NULL, call, NULL, &function))
    TVMFFIFunctionSetGlobal(&called, function, 0);
  if (function != NULL) TVMFFIObjectDecRef(function);
}

__attribute__((constructor)) static void start(void) {
  add("rpc.test.addone", addone);
  add("rpc.test.strcat", concatenate);
  add("rpc.test.except", except);
  add("rpc.test.remote_tensor_func", all_ones);
  add("rpc.test.add_to_lhs", add_to_lhs);
  add("rpc.test.remote_return_nd", return_nd);
  add("live.loaded", addone);
}
