"""Rules by which a latency is taken and visits become a label. A change of any constant needs a new protocol id."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Rule:
    """One visit to a program is taken by this rule."""

    protocol_id: str
    repeat_ms: int
    """One repeat lasts at least this long: the program is called as often as that takes; 0: it is called once."""
    repeats: tuple[tuple[float, int], ...]
    """(run time below, repeats): slow programs get fewer."""
    too_slow_s: float
    """A program whose warm-up run takes longer is abandoned."""
    min_separation_s: float
    """Time between the starts of two visits to one program."""
    clock: str

    def repeats_for(self, run_s: float) -> int:
        """Return the repeats that a program of ``run_s`` seconds a run gets; 0 where it is too slow."""
        return 0 if run_s > self.too_slow_s else next(n for limit, n in self.repeats if run_s < limit)

    def describe(self, cores: int = 1) -> str:
        """Describe the protocol in words, for programs that run on ``cores`` processor cores."""
        where = "one pinned core" if cores == 1 else f"{cores} pinned cores"
        return (
            f"{self.protocol_id}: {self.clock}, {where}, TVM_NUM_THREADS={cores}, 64-byte aligned tensors, "
            f"warm caches (no flush), one warm-up run, {self.repeats_in_words()}; {self.visits_in_words('programs')}"
        )

    def repeats_in_words(self) -> str:
        """Say how many repeats a run gets, by its time."""
        (_, most), *fewer = self.repeats
        limits = [f"{n} from {1e3 * low:g} ms" for (low, _), (_, n) in zip(self.repeats, fewer, strict=False)]
        lasting = f"of at least {self.repeat_ms} ms" if self.repeat_ms else "of one run"
        return f"{most} repeats {lasting} ({', '.join(limits)}, none above {self.too_slow_s:g} s)"

    def visits_in_words(self, timed: str) -> str:
        """Say how visits to ``timed`` things become a label."""
        return (
            f"two visits at least {self.min_separation_s:g} s "
            f"apart, a third where their minima differ by over {AGREEMENT:.0%}; label = minimum over all samples; "
            f"spread = relative difference of the two smallest visit minima; reference {timed} at both ends of every "
            "measuring window, visits are repeated where one stays over 5 % (memory: 25 %) slow over several looks"
        )


CPU = Rule("cpu-v4", 1, ((0.002, 30), (0.005, 12), (0.020, 6), (0.100, 3), (float("inf"), 2)), 1.0, 60.0, "wall clock")
"""Neighbours on a shared host come and go within milliseconds: many short repeats find the quiet ones.

``cpu-v1`` took 10 repeats of 10 ms (5 from 20 ms, 3 from 100 ms), ``cpu-v2`` 10 of 5 ms (5 from 5 ms, 3 from 20 ms, 2
from 100 ms), ``cpu-v3`` the same as now. Up to ``cpu-v3`` inputs of bytes (masks) held small random integers, zeros
where an axis of length one was among the inputs. All labels are minima of two or more visits.
"""
GPU = Rule("gpu-v1", 3, ((0.003, 5), (0.030, 3), (float("inf"), 2)), 0.5, 10.0, "device events")
"""Events leave out the launch and repeat closely, and a lent GPU is short of time: fewer, shorter repeats."""


def rule_of(kind: str) -> Rule:
    """Return the rule by which programs of a kind of device are timed: ``cpu``, or any name of a GPU."""
    return CPU if kind == "cpu" else GPU


VISIT_LIMIT_S = 15.0
"""A worker that has not answered by then is killed."""
BUILD_LIMIT_S = 30.0
AGREEMENT = 0.05
"""Visits whose minima differ by more ask for another visit, and flag the record where none helps."""
MAX_VISITS = 3


@dataclass
class Visits:
    """These are all visits to one program so far."""

    samples: list[tuple[float, ...]] = field(default_factory=list)
    """Seconds a run, one tuple a visit."""
    quiet: list[bool] = field(default_factory=list)
    """True for each visit around which the reference kernels were as fast as usual."""
    clock_mhz: list[float] = field(default_factory=list)
    """Clock of the core at the end of each visit, in MHz; empty where it was not looked at."""
    last_start: float = float("-inf")
    """``time.monotonic()`` at the start of the last visit."""

    def add(self, samples: Sequence[float], quiet: bool, start: float, clock_mhz: float | None = None) -> None:
        """Add a visit: ``samples`` in seconds a run, ``start`` by ``time.monotonic()``."""
        self.samples.append(tuple(samples))
        if clock_mhz is not None:
            self.clock_mhz.append(clock_mhz)
        self.quiet.append(quiet)
        self.last_start = start

    @property
    def minima(self) -> list[float]:
        """These are the minima of all visits in seconds, ascending."""
        return sorted(min(visit) for visit in self.samples)

    @property
    def spread(self) -> float:
        """Return the relative difference of the two smallest visit minima; 0 for a single visit."""
        lowest = self.minima
        return lowest[1] / lowest[0] - 1.0 if len(lowest) > 1 else 0.0

    @property
    def label(self) -> float:
        """The label is the minimum over all samples, in seconds."""
        return self.minima[0]

    @property
    def median(self) -> float:
        """Return the median of the visit that holds the minimum, in seconds."""
        return statistics.median(min(self.samples, key=min))

    @property
    def flagged(self) -> bool:
        """Return True where the two fastest visits disagree."""
        return self.spread > AGREEMENT

    @property
    def complete(self) -> bool:
        """Return True where no further visit is due."""
        unquiet = len(self.quiet) - sum(self.quiet)
        if len(self.samples) >= MAX_VISITS + min(unquiet, 1):  # one more where a reference kernel was slow
            return True
        return len(self.samples) >= 2 and sum(self.quiet) >= 1 and not self.flagged


@dataclass
class Timed:
    """This is a built program between its first visit and its last."""

    record_id: str
    arguments: list[Any]
    """``[[shape, dtype], ...]``, outputs included."""
    library: Path
    visits: Visits = field(default_factory=Visits)

    @property
    def symbol(self) -> str:
        """The library has this entry."""
        return f"p{self.record_id}"

    def build_request(self, workload: str, schedule: str, target: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request to a worker to build the library, with texts of TVMScript and of a trace."""
        program = {"workload": workload, "schedule": schedule, "target": dict(target)}
        return {"op": "build", **program, "symbol": self.symbol, "path": str(self.library)}

    def timing_request(self, op: str, **where: Any) -> dict[str, Any]:
        """Return the request to a worker for one visit."""
        return {"op": op, "path": str(self.library), "symbol": self.symbol, "arguments": self.arguments, **where}
