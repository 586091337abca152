"""Processor cores of this process, and how many of them other work leaves free."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")


def allowed_cores() -> list[int]:
    """Return the numbers of the processor cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(allowed_cores())


class CoreWatch:
    """It counts free cores, from one question to the next. Linux tells what others do; elsewhere all count as free.

    Threads of OpenMP spin at the end of every loop until the last one is there. Where other work has its core, they
    spin for a thread that does not run, hundreds of times a second: a thread less is then much faster.
    """

    def __init__(self, stat: Path = _STAT) -> None:
        self._stat, self._cores = stat, allowed_cores()
        self._before = self._now()

    def free(self, at_least_s: float = 0.1) -> int:
        """Count the cores that were idle or this process's own since the last question, at least one.

        Waits until that is ``at_least_s`` seconds ago: Linux counts in hundredths.
        """
        started_s, idle, own_s = self._before
        if idle is not None and len(self._cores) > 1:
            time.sleep(max(0.0, started_s + at_least_s - time.monotonic()))
        now_s, idle_now, own_now_s = self._before = self._now()
        if idle is None or idle_now is None or now_s <= started_s:
            return len(self._cores)
        ours_s = (idle_now - idle) / os.sysconf("SC_CLK_TCK") + own_now_s - own_s
        return min(len(self._cores), max(1, round(ours_s / (now_s - started_s))))

    def _now(self) -> tuple[float, int | None, float]:
        """Now, ticks in which the cores were idle or waited for a disk, seconds of this process."""
        try:
            lines = {words[0]: words for words in map(str.split, self._stat.read_text().splitlines()) if words}
            idle = sum(int(lines[f"cpu{core}"][4]) + int(lines[f"cpu{core}"][5]) for core in self._cores)
        except (OSError, LookupError, ValueError):
            return time.monotonic(), None, time.process_time()
        return time.monotonic(), idle, time.process_time()
