// Runs compiled programs once each: `driver a.so float32:1x8x14x14,int64:3 b.so ...`; one task does all parallel work.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct { void* data; int32_t device_type, device_id, ndim; uint8_t code, bits; uint16_t lanes; int64_t *shape, *strides; uint64_t byte_offset; } Tensor;
typedef struct { int32_t type_index, padding; union { void* pointer; int64_t integer; } value; } Any;
typedef struct { void* sync; int32_t tasks; } Group;
enum { TENSOR_POINTER = 7, MOST = 64, ALIGNMENT = 64, MOST_SECONDS = 30 };

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
  memset(tensor->data, tensor->bits == 8, n * (tensor->bits / 8));  // masks are set
  uint32_t state = 12345;
  for (uint64_t i = 0; i < n && tensor->code == 2 && tensor->bits == 32; ++i) {
    state = state * 1664525u + 1013904223u;
    ((float*)tensor->data)[i] = (float)(state >> 8) / (float)(1 << 23) - 1.0f;
  }
  return (Any){TENSOR_POINTER, 0, {tensor}};
}

// Drives the arguments out of caches of up to a mebibyte.
static void sweep(void) {
  static volatile char other[4 << 20];
  for (size_t i = 0; i < sizeof other; i += 64) ++other[i];
}

// Runs one program; a library without counters prints only how it went.
static int run(const char* path, char* words) {
  void* library = dlopen(path, RTLD_LAZY);
  if (!library) { fprintf(stderr, "%s\n", dlerror()); return 2; }
  offer(library, "__TVMBackendAllocWorkspace", allocate);
  offer(library, "__TVMBackendFreeWorkspace", release);
  offer(library, "__TVMBackendParallelLaunch", launch);
  offer(library, "__TVMBackendParallelBarrier", wait_for_all);
  int (*main_of)(void*, Any*, int, Any*) = dlsym(library, "__tvm_ffi_main");
  if (!main_of) return 2;
  Any arguments[MOST], result = {0};
  int count = 0;
  char* rest = NULL;
  for (char* part = strtok_r(words, ",", &rest); part && count < MOST; part = strtok_r(NULL, ",", &rest)) arguments[count++] = tensor_of(part);
  sweep();
  if (main_of(NULL, arguments, count, &result)) return 4;
  uint64_t* counts = dlsym(library, "block_counts");
  if (!counts) { printf("0\n"); return 0; }
  Dl_info info;
  const ElfW(Sym)* symbol = NULL;
  if (!dladdr1(counts, &info, (void**)&symbol, RTLD_DL_SYMENT) || !symbol) return 5;
  printf("0");
  for (uint64_t i = 0; i < symbol->st_size / 8; ++i) printf(" %lu", (unsigned long)counts[i]);
  printf("\n");
  return 0;
}

// Of each program a line: 0 and its counts, or how it failed. Each has a process of its own, so that none ends the others.
int main(int n, char** words) {
  int apart = !getenv("TOGETHER");  // one process is what valgrind counts best
  for (int i = 1; i + 1 < n; i += 2) {
    fflush(stdout);
    if (!apart) { int failed = run(words[i], words[i + 1]); if (failed) return failed; continue; }
    pid_t child = fork();
    if (child == 0) { alarm(MOST_SECONDS); int failed = run(words[i], words[i + 1]); fflush(stdout); _exit(failed); }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) < 0) return 6;
    if (status) { printf("%d\n", WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status)); }
  }
  return 0;
}
