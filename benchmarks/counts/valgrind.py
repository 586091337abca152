"""What valgrind's callgrind sees of programs without AVX-512: all kinds of instructions, misses of caches."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.counts.blocks import computes, plain
from benchmarks.counts.executed import Runnable, assemble, build_driver

GEOMETRY = ("--I1=32768,8,64", "--D1=32768,8,64", "--LL=1048576,16,64")
"""Bytes, ways, bytes of a line."""


@dataclass
class Seen:
    """One run of a program's own functions; the caches hold nothing of its arguments before."""

    instructions: int = 0
    loads: int = 0
    stores: int = 0
    """Loads and stores of every kind: calls, returns, pushes and pops included."""
    branches: int = 0
    """Conditional jumps."""
    first_level: int = 0
    """Misses of loads and stores."""
    last_level: int = 0


def seen(programs: Sequence[Runnable]) -> list[Seen]:
    """Run programs under callgrind.

    Raises:
        subprocess.CalledProcessError: a program does not run, or valgrind is missing.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        words = []
        for i, program in enumerate(programs):
            source, library = folder / f"program{i}.s", folder / f"program{i}.so"
            source.write_text("\n".join(plain(program.assembly)) + "\n")
            if error := assemble(source, library):
                raise subprocess.CalledProcessError(1, "as", stderr=error)
            words += [str(library), ",".join(program.arguments)]
        out = folder / "costs"
        flags = (
            "--compress-strings=no",
            "--compress-pos=no",
            "--dump-line=no",
            "--skip-plt=no",
            "--cache-sim=yes",
            "--branch-sim=yes",
        )
        command = ("valgrind", "--tool=callgrind", *GEOMETRY, *flags, f"--callgrind-out-file={out}")
        environment = {**os.environ, "TOGETHER": "1"}
        subprocess.run(
            [*command, str(build_driver(folder)), *words], check=True, capture_output=True, text=True, env=environment
        )
        found = _read(out.read_text())
    return [found[f"program{i}.so"] for i in range(len(programs))]


def _read(text: str) -> dict[str, Seen]:
    """Name of a library -> what its functions that compute did."""
    found: defaultdict[str, Seen] = defaultdict(Seen)
    events: list[str] = []
    library = function = ""
    calls = False
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if line.startswith("events: "):
            events = line.split()[1:]
        elif key == "ob":
            library = Path(value).name
        elif key == "fn":
            function = value
        elif key == "calls":
            calls = True  # what the next line tells happened inside another function
        elif line[:1].isdigit() and calls:
            calls = False
        elif line[:1].isdigit() and computes(function):
            costs = dict(zip(events, map(int, line.split()[1:]), strict=False))
            one = found[library]
            one.instructions += costs.get("Ir", 0)
            one.loads += costs.get("Dr", 0)
            one.stores += costs.get("Dw", 0)
            one.branches += costs.get("Bc", 0)
            one.first_level += costs.get("D1mr", 0) + costs.get("D1mw", 0)
            one.last_level += costs.get("DLmr", 0) + costs.get("DLmw", 0)
    return found
