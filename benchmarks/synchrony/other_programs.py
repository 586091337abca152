"""What other programs take of the machine while something is measured: CPU seconds of processes outside this group."""

from __future__ import annotations

import os
from pathlib import Path

_KERNEL = 2
"""Parent of the kernel's own threads, which do the work of links."""


def cpu_seconds() -> dict[int, float]:
    """CPU seconds so far of each process that is neither of this process group nor a thread of the kernel."""
    found, tick_s = {}, 1 / os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parent, group = int(fields[1]), int(fields[2])
        if group != os.getpgrp() and parent != _KERNEL:
            found[int(path.parent.name)] = (int(fields[11]) + int(fields[12])) * tick_s
    return found


def taken(before: dict[int, float], after: dict[int, float]) -> float:
    """CPU seconds that the processes of ``after`` have taken since ``before``."""
    return sum(seconds - before.get(process, 0.0) for process, seconds in after.items())
