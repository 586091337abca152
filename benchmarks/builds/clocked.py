"""Runs a command and says what it took: ``python clocked.py REPORT.json COMMAND...``. Needs Linux.

Seconds of processors are those of the command and of all processes that it started, also of those that outlive it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_BECOME_SUBREAPER = 36
_WAIT_S = 30.0
"""For processes that the command left behind."""


def main() -> int:
    """Write ``cpu_s``, ``wall_s`` and ``memory_mb`` of the command, and return its exit code."""
    ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)
    begin = time.perf_counter()
    code = subprocess.Popen(sys.argv[2:]).wait()
    wall_s = time.perf_counter() - begin
    with suppress(ChildProcessError):
        while time.perf_counter() - begin < wall_s + _WAIT_S:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.01)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = {"cpu_s": spent.ru_utime + spent.ru_stime, "wall_s": wall_s, "memory_mb": spent.ru_maxrss / 1e3}
    Path(sys.argv[1]).write_text(json.dumps(took))
    return code


if __name__ == "__main__":
    sys.exit(main())
