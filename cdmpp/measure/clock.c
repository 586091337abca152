// The clock that a core really has; measure/clock.py compiles it.
#include <time.h>

#if defined(__aarch64__)
#define CHAIN(count) __asm__ volatile(".rept " #count "\n add %0, %0, %1\n .endr" : "+r"(sum) : "r"(step))
#else
#define CHAIN(count) __asm__ volatile(".rept " #count "\n addq %1, %0\n .endr" : "+r"(sum) : "r"(step))
#endif

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

// Dependent additions of registers take a cycle each; of a constant they would take none on newer cores. The best of
// several short looks: a core that is taken away for a moment is seen in few of them.
double running_mhz(void) {
  long sum = 0, step = 1;
  double best_s = 1e9;
  for (int look = 0; look < 8; ++look) {
    double begin = now_s();
    for (int turn = 0; turn < 400; ++turn) CHAIN(128);
    double took_s = now_s() - begin;
    if (took_s < best_s) best_s = took_s;
  }
  return 400 * 128 / best_s / 1e6;
}
