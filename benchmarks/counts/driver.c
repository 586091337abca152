// Runs compiled programs once each: `driver a.so float32:1x8x14x14,int64:3 b.so ...`; one task does all parallel work.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { void* data; int32_t device_type, device_id, ndim; uint8_t code, bits; uint16_t lanes; int64_t *shape, *strides; uint64_t byte_offset; } Tensor;
typedef struct { int32_t type_index, padding; union { void* pointer; int64_t integer; } value; } Any;
typedef struct { void* sync; int32_t tasks; } Group;
enum { TENSOR_POINTER = 7, MOST = 64, ALIGNMENT = 64 };

static void* allocate(int device_type, int device, uint64_t bytes, int code, int bits) {
  (void)device_type, (void)device, (void)code, (void)bits;
  return aligned_alloc(ALIGNMENT, (bytes + 2 * ALIGNMENT) / ALIGNMENT * ALIGNMENT);
}
static int release(int device_type, int device, void* place) { (void)device_type, (void)device; free(place); return 0; }
static int launch(int (*task)(int, Group*, void*), void* closure, int tasks) {
  Group group = {NULL, 1};
  (void)tasks;
  return task(0, &group, closure);
}
static int wait_for_all(int task, Group* group) { (void)task, (void)group; return 0; }

static void offer(void* library, const char* name, void* function) {
  void** place = dlsym(library, name);
  if (place) *place = function;
}

static Any tensor_of(char* text) {
  char kind[16] = "";
  int bits = 0, read = 0;
  if (sscanf(text, "%15[a-z]%d:%n", kind, &bits, &read) < 1) exit(3);
  if (!read) read = (int)(strchr(text, ':') - text) + 1;
  Tensor* tensor = calloc(1, sizeof *tensor);
  tensor->device_type = 1;
  tensor->code = !strcmp(kind, "int") ? 0 : !strcmp(kind, "uint") ? 1 : !strcmp(kind, "bool") ? 6 : !strcmp(kind, "bfloat") ? 4 : 2;
  tensor->bits = bits ? bits : 8;
  tensor->lanes = 1;
  tensor->shape = calloc(16, sizeof(int64_t));
  uint64_t n = 1;
  for (char* part = strtok(text + read, "x"); part; part = strtok(NULL, "x")) n *= (uint64_t)(tensor->shape[tensor->ndim++] = atoll(part));
  tensor->data = allocate(1, 0, n * (tensor->bits / 8) + 4096, 0, 0);
  memset(tensor->data, 0, n * (tensor->bits / 8));
  uint32_t state = 12345;
  for (uint64_t i = 0; i < n && tensor->code == 2 && tensor->bits == 32; ++i) {
    state = state * 1664525u + 1013904223u;
    ((float*)tensor->data)[i] = (float)(state >> 8) / (float)(1 << 23) - 1.0f;
  }
  return (Any){TENSOR_POINTER, 0, {tensor}};
}

int main(int n, char** words) {
  for (int i = 1; i + 1 < n; i += 2) {
    void* library = dlopen(words[i], RTLD_LAZY);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 2; }
    offer(library, "__TVMBackendAllocWorkspace", allocate);
    offer(library, "__TVMBackendFreeWorkspace", release);
    offer(library, "__TVMBackendParallelLaunch", launch);
    offer(library, "__TVMBackendParallelBarrier", wait_for_all);
    int (*run)(void*, Any*, int, Any*) = dlsym(library, "__tvm_ffi_main");
    if (!run) return 2;
    Any arguments[MOST], result = {0};
    int count = 0;
    char* rest = NULL;
    for (char* part = strtok_r(words[i + 1], ",", &rest); part && count < MOST; part = strtok_r(NULL, ",", &rest)) arguments[count++] = tensor_of(part);
    int failed = run(NULL, arguments, count, &result);
    if (failed) { fprintf(stderr, "%s: %d\n", words[i], failed); return 4; }
  }
  return 0;
}
