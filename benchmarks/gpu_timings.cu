// Numbers of conf/gpu_core that no document gives, timed on the GPU at hand:
// nvcc -O2 -arch=native benchmarks/gpu_timings.cu -o gpu_timings && ./gpu_timings
// Latencies come from chains in which each instruction needs the one before; rates from all multiprocessors at once.
#include <cstdint>
#include <cstdio>
#include <vector>

#define CHECK(call)                                                                 \
  do {                                                                              \
    cudaError_t error = (call);                                                     \
    if (error != cudaSuccess) {                                                     \
      std::printf("%s: %s\n", #call, cudaGetErrorString(error));                    \
      return 1;                                                                     \
    }                                                                               \
  } while (0)

constexpr int kSteps = 4096;

__global__ void SharedChain(long long* cycles, uint32_t* sink) {
  __shared__ uint32_t cells[1024];
  uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(cells));
  for (int i = 0; i < 1024; ++i) cells[i] = base + 4 * ((i + 33) % 1024);
  uint32_t at = base;
  long long begin = clock64();
#pragma unroll 16
  for (int i = 0; i < kSteps; ++i) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at)::"memory");
  long long end = clock64();
  *cycles = end - begin;
  *sink = at;
}

template <bool kFirstLevel>
__global__ void GlobalChain(uint64_t start, int steps, long long* cycles, uint64_t* sink) {
  uint64_t at = start;
  for (int pass = 0; pass < 2; ++pass) {  // the first fills the caches
    long long begin = clock64();
#pragma unroll 16
    for (int i = 0; i < steps; ++i) {
      if (kFirstLevel) {
        asm volatile("ld.global.ca.u64 %0, [%0];" : "+l"(at)::"memory");
      } else {
        asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(at)::"memory");
      }
    }
    *cycles = clock64() - begin;
  }
  *sink = at;
}

template <int kKind>
__global__ void ArithmeticChain(float value, long long* cycles, float* sink) {
  long long begin = clock64();
#pragma unroll 16
  for (int i = 0; i < kSteps; ++i) {
    if (kKind == 0) asm volatile("fma.rn.f32 %0, %0, %0, %0;" : "+f"(value));
    if (kKind == 1) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(value));
  }
  *cycles = clock64() - begin;
  *sink = value;
}

__global__ void Barriers(long long* cycles) {
  __syncthreads();
  long long begin = clock64();
#pragma unroll 16
  for (int i = 0; i < kSteps; ++i) __syncthreads();
  if (threadIdx.x == 0) *cycles = clock64() - begin;
}

// Each thread loads or stores 16 bytes at a time, beside those of its neighbours; a multiprocessor runs two such blocks.
__global__ void __launch_bounds__(1024, 2) Loads(const float4* data, int steps, int rounds, long long* cycles, float* sink) {
  float sum = 0;
  const float4* mine = data + threadIdx.x;
  long long begin = 0;
  for (int round = -1; round < rounds; ++round) {  // the first fills the cache
    if (round == 0) {
      __syncthreads();
      begin = clock64();
    }
    const float4* at = mine;
    for (int i = 0; i < steps; i += 8) {
      float4 values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j, at += 1024) {
        asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(values[j].x), "=f"(values[j].y), "=f"(values[j].z), "=f"(values[j].w) : "l"(at));
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += values[j].x + values[j].w;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - begin;
  if (sum == 12345.f) *sink = sum;
}

__global__ void __launch_bounds__(1024, 2) Stores(float4* data, int steps, int rounds, long long* cycles) {
  float4* mine = data + static_cast<size_t>(blockIdx.x) * steps * 1024 + threadIdx.x;
  __syncthreads();
  long long begin = clock64();
  for (int round = 0; round < rounds; ++round) {
    float4 value = make_float4(round, round, round, round);
#pragma unroll 8
    for (int i = 0; i < steps; ++i) mine[i * 1024] = value;
  }
  __syncthreads();
  if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - begin;
}

__global__ void Nothing() {}

int main() {
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  std::printf("%s, %d multiprocessors, L2 %d KiB\n", device.name, device.multiProcessorCount, device.l2CacheSize >> 10);
  const int blocks = device.multiProcessorCount;
  const size_t kBytes = 512u << 20;
  char* memory;
  long long* cycles;
  float* sink;
  CHECK(cudaMalloc(&memory, kBytes));
  CHECK(cudaMalloc(&cycles, 8 * 1024));
  CHECK(cudaMalloc(&sink, 64));
  long long found[1024];
  auto take = [&](int count) { return cudaMemcpy(found, cycles, 8 * count, cudaMemcpyDeviceToHost); };
  auto mean = [&] {
    double sum = 0;
    for (int i = 0; i < blocks; ++i) sum += found[i];
    return sum / blocks;
  };

  SharedChain<<<1, 1>>>(cycles, reinterpret_cast<uint32_t*>(sink));
  CHECK(take(1));
  std::printf("shared_latency %.1f cycles\n", double(found[0]) / kSteps);

  auto chain = [&](size_t bytes, size_t stride) {
    size_t count = bytes / stride, step = 1 + count * 5 / 8;
    while (count % step == 0 || step % 2 == 0) ++step;
    std::vector<uint64_t> links(bytes / 8);
    uint64_t base = reinterpret_cast<uint64_t>(memory);
    for (size_t i = 0; i < count; ++i) links[i * stride / 8] = base + (i + step) % count * stride;
    return cudaMemcpy(memory, links.data(), bytes, cudaMemcpyHostToDevice);
  };
  struct Footprint { const char* name; size_t bytes; int steps; bool first; };
  for (Footprint one : {Footprint{"l1_latency", 16u << 10, kSteps, true}, {"l2_latency", 1u << 20, 1 << 14, false},
                        {"l2_latency, 16 MiB", 16u << 20, 1 << 18, false}, {"memory_latency", 256u << 20, 1 << 18, false}}) {
    CHECK(chain(one.bytes, one.first ? 64 : 1024));
    uint64_t base = reinterpret_cast<uint64_t>(memory);
    if (one.first) GlobalChain<true><<<1, 1>>>(base, one.steps, cycles, reinterpret_cast<uint64_t*>(sink));
    else GlobalChain<false><<<1, 1>>>(base, one.steps, cycles, reinterpret_cast<uint64_t*>(sink));
    CHECK(take(1));
    std::printf("%s %.1f cycles\n", one.name, double(found[0]) / one.steps);
  }

  ArithmeticChain<0><<<1, 1>>>(0.1f, cycles, sink);
  CHECK(take(1));
  std::printf("fma latency %.2f cycles\n", double(found[0]) / kSteps);
  ArithmeticChain<1><<<1, 1>>>(0.1f, cycles, sink);
  CHECK(take(1));
  std::printf("special_latency %.2f cycles\n", double(found[0]) / kSteps);
  for (int threads : {32, 128, 256, 1024}) {
    Barriers<<<1, threads>>>(cycles);
    CHECK(take(1));
    std::printf("barrier of %d threads %.2f cycles\n", threads, double(found[0]) / kSteps);
  }

  float4* data = reinterpret_cast<float4*>(memory);
  CHECK(cudaMemset(memory, 0, kBytes));
  const double kStepSectors = 1024 * 16 / 32.0;  // of one block
  for (int mib : {4, 16}) {
    int steps = (mib << 20) / (1024 * 16);
    Loads<<<2 * blocks, 1024>>>(data, steps, 4, cycles, sink);
    CHECK(take(2 * blocks));
    std::printf("l2_sectors_per_cycle of %d MiB %.3f\n", mib, 2 * kStepSectors * steps * 4 / mean());
  }
  Stores<<<blocks, 1024>>>(data, 8, 256, cycles);
  CHECK(take(blocks));
  std::printf("store_sectors_per_cycle %.3f\n", kStepSectors * 8 * 256 / mean());

  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int grid : {1, blocks, 32 * blocks, 4096 * blocks}) {
    float ms;
    for (int pass = 0; pass < 2; ++pass) {
      CHECK(cudaEventRecord(begin));
      for (int i = 0; i < 1000; ++i) Nothing<<<grid, 128>>>();
      CHECK(cudaEventRecord(end));
      CHECK(cudaEventSynchronize(end));
      CHECK(cudaEventElapsedTime(&ms, begin, end));
    }
    std::printf("kernel of %d blocks that does nothing, in a row: %.3f us\n", grid, ms);
  }
  CHECK(cudaGetLastError());
  return 0;
}
