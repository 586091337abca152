"""Datasheet numbers that no document states, timed on this machine: ``python -m cdmpp.measure.probe --clock-mhz 2300``.

A C program of a few loops is compiled and run. It tells the clock by a chain of integer additions, which take one cycle
on every x86-64 core, and with it what a chain of float additions takes, a vector gather from L1, and a row of
zeroed registers, which need nothing but a slot of the issue width.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cdmpp.errors import CdmppError

_SOURCE = r"""
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
"""


@dataclass(frozen=True)
class CoreProbe:
    """Nanoseconds of one each, the least of seven visits; in the order that the C program prints them."""

    integer_add_ns: float
    float_add_ns: float
    zeroed_ns: float
    gather_lane_ns: float

    @property
    def running_mhz(self) -> float:
        """The clock that the core really had."""
        return 1e3 / self.integer_add_ns

    @property
    def add_latency_cycles(self) -> float:
        """From one dependent float addition to the next."""
        return self.float_add_ns / self.integer_add_ns

    @property
    def issue_width(self) -> float:
        """Instructions that the core can start in a cycle."""
        return self.integer_add_ns / self.zeroed_ns

    def gather_cycles_per_lane(self, clock_mhz: float) -> float:
        """In cycles of ``clock_mhz``, the clock of the datasheet."""
        return self.gather_lane_ns * clock_mhz / 1e3

    def yaml(self, clock_mhz: float) -> str:
        """Lines for ``spec`` of a device file."""
        source = 'source: "derived: timed by python -m cdmpp.measure.probe"'
        values = (
            ("issue_width", round(self.issue_width), '"1"'),
            ("gather_cycles_per_lane", round(self.gather_cycles_per_lane(clock_mhz), 2), "cycle"),
            ("add_latency_cycles", round(self.add_latency_cycles), "cycle"),
        )
        return "\n".join(f"  {name}: {{value: {value}, unit: {unit}, {source}}}" for name, value, unit in values)


def probe() -> CoreProbe:
    """Compile and run the loops; a second or two, on an otherwise idle core.

    Raises:
        CdmppError: this is no x86-64 with AVX2, or there is no C compiler.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        raise CdmppError(f"the probe is written for x86-64, this is {platform.machine()}; see conf/device/README.md")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise CdmppError("the probe needs a C compiler (cc, gcc or clang) on the path")
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "probe.c", Path(folder) / "probe"
        source.write_text(_SOURCE, encoding="utf-8")
        command = [compiler, "-O2", "-mavx2", str(source), "-o", str(program)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            raise CdmppError(f"{compiler} cannot build the probe: {built.stderr.strip()[-500:]}")
        ran = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise CdmppError(f"the probe ended with code {ran.returncode}: does this CPU have AVX2?")
    return CoreProbe(*map(float, ran.stdout.split()))


def main() -> None:
    """Print what was timed, as lines of a device file."""
    parser = argparse.ArgumentParser(prog="python -m cdmpp.measure.probe", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clock-mhz", type=float, required=True, help="clock_mhz of the device file, its base clock")
    options = parser.parse_args()
    core = probe()
    print(f"# the core ran at {core.running_mhz:.0f} MHz; a gather takes {core.gather_lane_ns:.3f} ns a lane")
    print(core.yaml(options.clock_mhz))


if __name__ == "__main__":
    try:
        main()
    except CdmppError as error:
        raise SystemExit(f"error: {error}") from None
