"""How a latency is taken, and how visits become a label. A change of any constant needs a new ``PROTOCOL_ID``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

PROTOCOL_ID = "cpu-v1"

REPEAT_MS = 10
"""One repeat lasts at least this long: the program is called as often as that takes."""
REPEATS = ((0.020, 10), (0.100, 5), (float("inf"), 3))
"""(run time below, repeats): slow programs get fewer."""
TOO_SLOW_S = 1.0
"""A program whose warm-up run takes longer is abandoned."""
VISIT_LIMIT_S = 15.0
"""A worker that has not answered by then is killed."""
BUILD_LIMIT_S = 30.0
MIN_SEPARATION_S = 60.0
"""Time between the starts of two visits to one program."""
AGREEMENT = 0.05
"""Visits whose minima differ by more ask for another visit, and flag the record where none helps."""
MAX_VISITS = 3
MAX_UNQUIET_VISITS = 1
"""Visits that a sentinel called unquiet, given on top of ``MAX_VISITS``."""

DESCRIPTION = (
    f"{PROTOCOL_ID}: one pinned core, TVM_NUM_THREADS=1, 64-byte aligned tensors, warm caches (no flush), "
    "one warm-up run, "
    f"10 repeats of at least {REPEAT_MS} ms (5 from 20 ms a run, 3 from 100 ms, none above {TOO_SLOW_S:g} s); "
    f"two visits at least {MIN_SEPARATION_S:g} s apart, a third where their minima differ by over {AGREEMENT:.0%}; "
    "label = minimum over all samples; spread = relative difference of the two smallest visit minima; "
    "sentinel programs at both ends of every measuring window, visits taken while one is over 5 % slow are repeated"
)


@dataclass
class Visits:
    """All visits to one program so far."""

    samples: list[tuple[float, ...]] = field(default_factory=list)
    """Seconds a run, one tuple a visit."""
    quiet: list[bool] = field(default_factory=list)
    """What the sentinels said around each visit."""
    last_start: float = float("-inf")
    """``time.monotonic()`` at the start of the last visit."""

    def add(self, samples: Sequence[float], quiet: bool, start: float) -> None:
        self.samples.append(tuple(samples))
        self.quiet.append(quiet)
        self.last_start = start

    @property
    def minima(self) -> list[float]:
        return sorted(min(visit) for visit in self.samples)

    @property
    def spread(self) -> float:
        """Relative difference of the two smallest visit minima; 0 for a single visit."""
        lowest = self.minima
        return lowest[1] / lowest[0] - 1.0 if len(lowest) > 1 else 0.0

    @property
    def label(self) -> float:
        """Seconds: the minimum over all samples."""
        return self.minima[0]

    @property
    def median(self) -> float:
        """Seconds: the median of the visit that holds the minimum."""
        return statistics.median(min(self.samples, key=min))

    @property
    def flagged(self) -> bool:
        return self.spread > AGREEMENT

    @property
    def complete(self) -> bool:
        """True where no further visit is due."""
        unquiet = len(self.quiet) - sum(self.quiet)
        if len(self.samples) >= MAX_VISITS + min(unquiet, MAX_UNQUIET_VISITS):
            return True
        return len(self.samples) >= 2 and sum(self.quiet) >= 1 and not self.flagged


def repeats_for(run_s: float) -> int:
    """Repeats that a program of ``run_s`` seconds a run gets; 0 where it is too slow."""
    if run_s > TOO_SLOW_S:
        return 0
    return next(repeats for limit, repeats in REPEATS if run_s < limit)
