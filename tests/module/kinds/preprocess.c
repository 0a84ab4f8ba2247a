/* Native functions for tests of graphs: an image to a normalised tensor, and a sum. Plain C. */
#include <stdint.h>

typedef struct {
  int32_t type;
  uint32_t size;
  union {
    int64_t i;
    double f;
    void *p;
  } v;
} Any;

typedef struct {
  void *data;
  int32_t device[2];
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;

/* A DLTensor* (type 7), or an object with a tensor behind its header (type 70). */
static Tensor *tensor(const Any *any) {
  char *at = any->v.p;
  return (Tensor *)(any->type == 70 ? at + 24 : at);
}

static void *data(const Tensor *tensor) { return (char *)tensor->data + tensor->byte_offset; }

/* prepare(image uint8 [h, w, 3], mean float32 [3], out float32 [1, 3, h, w]): (image / 255 - mean). */
int __tvm_ffi_prepare(void *self, const Any *args, int32_t count, Any *result) {
  if (count != 3) return -1;
  Tensor *image = tensor(args), *mean = tensor(args + 1), *out = tensor(args + 2);
  int64_t pixels = image->shape[0] * image->shape[1];
  const uint8_t *from = data(image);
  const float *less = data(mean);
  float *to = data(out);
  for (int64_t pixel = 0; pixel < pixels; pixel++)
    for (int channel = 0; channel < 3; channel++)
      to[channel * pixels + pixel] = from[pixel * 3 + channel] / 255.0f - less[channel];
  return 0;
}

static int64_t items(const Tensor *tensor) {
  int64_t count = 1;
  for (int i = 0; i < tensor->ndim; i++) count *= tensor->shape[i];
  return count;
}

/* twice(x float32, out float32 of its size) */
int __tvm_ffi_twice(void *self, const Any *args, int32_t count, Any *result) {
  if (count != 2) return -1;
  const float *from = data(tensor(args));
  float *to = data(tensor(args + 1));
  for (int64_t i = 0; i < items(tensor(args)); i++) to[i] = 2 * from[i];
  return 0;
}

/* calls(): how often it was called in this process. */
int __tvm_ffi_calls(void *self, const Any *args, int32_t count, Any *result) {
  static int64_t times;
  result->type = 1;
  result->v.i = ++times;
  return 0;
}
