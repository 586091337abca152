// Loops that time what no datasheet says; measure/probe.py compiles and runs them.
#include <immintrin.h>
#include <stdio.h>
#include <time.h>

float table[1024];
float sink[8];

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

#define LOOP 2000000L
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

int main(void) {
  printf("%.9g %.9g %.9g %.9g\n", integer_add() * 1e9, float_add() * 1e9, zeroed() * 1e9, gathered_lane() * 1e9);
  return 0;
}
