"""Disturbance: what else a machine does while programs are timed on it, and how far their visits differ."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.measure import protocol

LOAD_LIMIT = 0.5
"""Threads of others that may run or wait to run, for each processor: with more, half of the machine is not ours."""
SPREAD_LIMIT = protocol.AGREEMENT
"""Median over programs of the relative difference of their two fastest visits. Above it most labels are in doubt by the
protocol's own measure. Over the whole of each data set that ships the median is 0.002 to 0.037."""
_LOADAVG, _LOOKS, _LOOK_S = Path("/proc/loadavg"), 40, 0.05
FEWEST_PROGRAMS = 4
"""A median of fewer programs is that of single slow moments: it is not judged."""


class Visited(Protocol):
    """It was timed in visits: a record, or visits themselves."""

    @property
    def spread(self) -> float:
        """Return the relative difference of the two fastest visits."""


@dataclass(frozen=True)
class Disturbance:
    """These numbers say how quiet a machine was."""

    load: float | None = None
    """Threads of others that ran or waited to run, mean over two seconds; None where the system does not tell."""
    processors: int = 1
    spread: float | None = None
    """Median relative difference of the two fastest visits; None where too few programs were visited."""

    @staticmethod
    def now(visited: Sequence[Visited] = ()) -> Disturbance:
        """Look at the machine at this moment, in which nothing of ours may run, and at the programs ``visited``."""
        return Disturbance(load_of_others(), os.cpu_count() or 1, _median_spread(visited))

    @staticmethod
    def of_visits(visited: Sequence[Visited]) -> Disturbance:
        """Judge another machine, whose load is not known, by the programs that were ``visited`` there."""
        return Disturbance(spread=_median_spread(visited))

    @staticmethod
    def of(records: Sequence[Record]) -> Disturbance:
        """Take the highest load that one of ``records`` states, and their spread."""
        told = [record.extra["load"].split("/") for record in records if "load" in record.extra]
        load, processors = max(((float(one), int(of)) for one, of in told), default=(None, 1))
        return Disturbance(load, processors, _median_spread(records))

    @property
    def mark(self) -> dict[str, str]:
        """Return the load as ``Record.extra`` states it."""
        return {} if self.load is None else {"load": f"{self.load:.1f}/{self.processors}"}

    @property
    def reasons(self) -> list[str]:
        """These numbers are above their limits, in words; empty for a quiet machine."""
        found = []
        if self.load is not None and self.load > LOAD_LIMIT * self.processors:
            most = LOAD_LIMIT * self.processors
            found.append(f"others load its {self.processors} processors with {self.load:.1f}, at most {most:g} may be")
        if self.spread is not None and self.spread > SPREAD_LIMIT:
            found.append(
                f"visits to the same program differ by {self.spread:.1%} (median), at most {SPREAD_LIMIT:.0%} may be"
            )
        return found

    def describe(self) -> str:
        """Return both numbers in words."""
        load = "load of others unknown" if self.load is None else f"load of others {self.load:.1f}"
        spread = "" if self.spread is None else f"; visits differ by {self.spread:.1%} (median)"
        return f"{load} on {self.processors} processor{'s' * (self.processors > 1)}{spread}"

    def check(self, how: str, kept: str = "Nothing was measured") -> None:
        """Raise ``DataError`` where it is not quiet: ``how`` stores all the same, ``kept`` is what happened."""
        if reasons := self.reasons:
            raise DataError(
                f"this machine is busy: {'; '.join(reasons)}. {kept}. Run the same command again when the machine is "
                f"quiet, or with {how}, which stores numbers that others have made worse"
            )


def load_of_others() -> float | None:
    """Return the mean number of other threads that run or wait, within two seconds; None where it is unknown.

    Linux counts them at each moment. Elsewhere it is the load average of the last minute, our own work included.
    """
    counts = []
    try:
        for _ in range(_LOOKS):
            time.sleep(_LOOK_S)
            counts.append(int(_LOADAVG.read_text().split()[3].partition("/")[0]) - 1)  # without the one that reads it
        return max(0.0, statistics.mean(counts))
    except (OSError, ValueError, IndexError):
        try:
            return os.getloadavg()[0]
        except OSError:
            return None


def _median_spread(visited: Sequence[Visited]) -> float | None:
    return statistics.median(one.spread for one in visited) if len(visited) >= FEWEST_PROGRAMS else None
