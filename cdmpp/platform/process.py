"""Which process wrote something, and whether it still lives: for what outlives processes, such as a queue on disk."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_START_FIELD, _STATE_FIELD = 19, 0  # of /proc/PID/stat behind the name, which may hold spaces
_GONE = "ZX"


@dataclass(frozen=True)
class ProcessMark:
    """It names one process among all that a machine ever ran."""

    machine: str
    """Boot and process namespace in which the number means something; empty where the system does not tell."""
    pid: int
    start: str
    """Clock ticks from the boot to its start: numbers of ended processes are given out again."""

    @staticmethod
    def own() -> ProcessMark:
        """Mark this process."""
        return ProcessMark(_machine(), os.getpid(), _start(os.getpid()))

    @property
    def is_gone(self) -> bool:
        """Return True where the process has surely ended; False where it lives, or runs where it cannot be seen."""
        return bool(self.machine) and self.machine == _machine() and _start(self.pid) != self.start


def _machine() -> str:
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink(_PROC / 'self/ns/pid')}"
    return ""


def _start(pid: int) -> str:
    """Return the start of a living process; empty where there is none."""
    with suppress(OSError, IndexError):
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return "" if fields[_STATE_FIELD] in _GONE else fields[_START_FIELD]
    return ""
