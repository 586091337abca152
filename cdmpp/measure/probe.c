// Loops that time what no datasheet says; measure/probe.py compiles and runs them: probe L2_BYTES L3_BYTES MEMORY_BYTES
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

float table[1024];
float sink[8];

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

#define LOOP 1000000L
#define TIMED(name, per_turn, setup, body)                         \
  static double name(void) {                                       \
    setup;                                                         \
    double best = 1e9;                                             \
    for (int visit = 0; visit < 7; ++visit) {                      \
      double start = now();                                        \
      for (long turn = 0; turn < LOOP; ++turn) { body; }           \
      double took = (now() - start) / LOOP / (per_turn);           \
      if (took < best) best = took;                                \
    }                                                              \
    return best;                                                   \
  }

// Registers alone: newer cores add a constant while they rename, in no time.
TIMED(integer_add, 64, long x = 0; long y = 1, __asm__ volatile(".rept 64\n addq %1, %0\n .endr" : "+r"(x) : "r"(y)))
TIMED(float_add, 16, __m128 x = _mm_set1_ps(0),
      __asm__ volatile(".rept 16\n vaddss %0, %0, %0\n .endr" : "+x"(x)))
// Zeroed registers end at the rename stage, one a slot. Not nops: Zen 4 fuses two of them into one slot.
TIMED(zeroed, 480, , __asm__ volatile(".rept 120\n xorl %%r8d, %%r8d\n xorl %%r9d, %%r9d\n xorl %%r10d, %%r10d\n"
                                      "xorl %%r11d, %%r11d\n .endr" ::: "r8", "r9", "r10", "r11", "cc"))
TIMED(gathered_lane, 8,
      __m256i at = _mm256_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112); __m256 sum = _mm256_setzero_ps(),
      __asm__ volatile("" ::: "memory");  // the table is read again each time
      sum = _mm256_xor_ps(sum, _mm256_i32gather_ps(table, at, 4)); _mm256_storeu_ps(sink, sum))
// A store and a load of its place, each waiting for the other.
TIMED(forward, 8, __m256 x = _mm256_setzero_ps(),
      __asm__ volatile(".rept 8\n vmovups %0, (%1)\n vmovups (%1), %0\n .endr" : "+x"(x) : "r"(table) : "memory"))
TIMED(masked_forward, 8, __m256 x = _mm256_setzero_ps(); __m256i m = _mm256_setr_epi32(-1, -1, -1, -1, -1, -1, 0, 0),
      __asm__ volatile(".rept 8\n vmaskmovps %0, %2, (%1)\n vmaskmovps (%1), %2, %0\n .endr"
                       : "+x"(x) : "r"(table), "x"(m) : "memory"))

// Nanoseconds a byte of adding up a buffer again and again.
static double read_byte(long bytes) {
  char* memory = aligned_alloc(4096, bytes);
  if (!memory) return 0;
  for (long at = 0; at < bytes; at += 64) *(float*)(memory + at) = 1.0f;
  long rounds = (1L << 28) / bytes + 1;
  double best = 1e9;
  __m256 sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = _mm256_setzero_ps();
  for (int visit = 0; visit < 4; ++visit) {
    double start = now();
    for (long round = 0; round < rounds; ++round) {
      for (long at = 0; at < bytes; at += 256) {
        for (int i = 0; i < 8; ++i) sums[i] = _mm256_xor_ps(sums[i], _mm256_load_ps((float*)(memory + at + 32 * i)));
      }
      __asm__ volatile("" ::: "memory");
    }
    double took = (now() - start) / rounds / bytes;
    if (took < best) best = took;
  }
  for (int i = 0; i < 8; ++i) _mm256_storeu_ps(sink, _mm256_xor_ps(sums[i], _mm256_loadu_ps(sink)));
  free(memory);
  return best;
}

// Nanoseconds a byte, read or written, of scaling one buffer into another.
static double moved_byte(long bytes) {
  long elements = bytes / 8;
  float* from = aligned_alloc(4096, bytes / 2);
  float* to = aligned_alloc(4096, bytes / 2);
  if (!from || !to) return 0;
  for (long i = 0; i < elements; ++i) from[i] = to[i] = 1.0f;
  double best = 1e9;
  __m256 half = _mm256_set1_ps(0.5f), one = _mm256_set1_ps(1.0f);
  for (int visit = 0; visit < 5; ++visit) {
    double start = now();
    for (long i = 0; i < elements; i += 8) {
      _mm256_store_ps(to + i, _mm256_add_ps(_mm256_mul_ps(_mm256_load_ps(from + i), half), one));
    }
    double took = (now() - start) / bytes;
    if (took < best) best = took;
  }
  sink[0] += to[elements / 2];
  free(from);
  free(to);
  return best;
}

int main(int count, char** arguments) {
  printf("%.9g %.9g %.9g %.9g %.9g %.9g", integer_add() * 1e9, float_add() * 1e9, zeroed() * 1e9,
         gathered_lane() * 1e9, forward() * 1e9, masked_forward() * 1e9);
  for (int i = 1; i < count - 1; ++i) printf(" %.9g", read_byte(atol(arguments[i])) * 1e9);
  if (count > 1) printf(" %.9g", moved_byte(atol(arguments[count - 1])) * 1e9);
  printf("\n");
  return 0;
}
