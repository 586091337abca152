"""The clock that a core really has, measured by a chain of additions that take one cycle each."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path

from cdmpp.errors import CdmppError

_SOURCE = Path(__file__).with_suffix(".c")


def c_compiler() -> str:
    """Return the path of a C compiler; ``CdmppError`` where there is none."""
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if found is None:
        raise CdmppError("no C compiler (cc, gcc or clang) on the path: install one, such as the package gcc")
    return found


def build_clock(folder: Path) -> Path:
    """Compile the chain into ``folder`` as a library; ``CdmppError`` where it cannot be."""
    library = folder / "clock.so"
    command = [c_compiler(), "-O2", "-shared", "-fPIC", str(_SOURCE), "-o", str(library)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode:
        raise CdmppError(f"{command[0]} cannot build the clock: {built.stderr.strip()[-500:]}")
    return library


@cache
def _entry(library: str) -> ctypes._NamedFuncPointer:
    entry = ctypes.CDLL(library).running_mhz
    entry.restype = ctypes.c_double
    return entry


def running_mhz(library: str) -> float:
    """Return MHz of the core that this thread runs on, by the library of ``build_clock``; takes a tenth of a ms."""
    return float(_entry(library)())
