"""How often the blocks of compiled programs run: exact, whatever else the machine does."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.counts.blocks import Counted, counting

DRIVER = Path(__file__).with_name("driver.c")
ARM = "aarch64"


class Runnable(NamedTuple):
    """One program."""

    assembly: str
    arguments: tuple[str, ...]
    """Arguments of its PrimFunc, such as ``float32:1x8x14x14``."""


class Tools(NamedTuple):
    """What assembles and runs programs of a processor."""

    compiler: str
    assembler: str
    linker: str
    runs: tuple[str, ...] = ()
    """Command in front of the program's."""


HERE = Tools("gcc", "as", "ld")
EMULATED = Tools(
    *("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-as", "aarch64-linux-gnu-ld"),
    ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"),
)
"""Debian's ``gcc-aarch64-linux-gnu`` and ``qemu-user``."""


class Executed(NamedTuple):
    """What a program did, or why nothing is known of it."""

    program: Counted
    runs: tuple[int, ...]
    """Runs of each of its blocks."""
    error: str = ""


def executed(programs: Sequence[Runnable], arm: bool = False) -> list[Executed]:
    """How often the blocks of each run; one that fails does not stop the others.

    Raises:
        subprocess.CalledProcessError: the compiler or the emulator is missing.
    """
    tools = EMULATED if arm else HERE
    with TemporaryDirectory() as name:
        folder = Path(name)
        driver = build_driver(folder, tools)
        counted, words, errors = [], [], {}
        for i, program in enumerate(programs):
            counted.append(counting(program.assembly, arm))
            source, library = folder / f"program{i}.s", folder / f"program{i}.so"
            source.write_text(counted[-1].assembly)
            made = assemble(source, library, tools)
            if made:
                errors[i] = made
            words += [str(library), ",".join(program.arguments)]
        told = command(*tools.runs, str(driver), *words)
    found = []
    for i, (program, line) in enumerate(zip(counted, told.splitlines(), strict=True)):
        status, *numbers = line.split()
        runs = tuple(int(number) for number in numbers)[: len(program.blocks)]
        error = errors.get(i, "") or ("" if status == "0" else f"it ended with status {status}")
        found.append(Executed(program, () if error else runs, error))
    return found


def build_driver(folder: Path, tools: Tools = HERE) -> Path:
    """The driver as a program in ``folder``."""
    driver = folder / "driver"
    command(tools.compiler, "-O2", str(DRIVER), "-o", str(driver), "-Wl,--no-as-needed", "-ldl", "-lm", "-rdynamic")
    return driver


def assemble(source: Path, library: Path, tools: Tools = HERE) -> str:
    """Make a library of assembly; returns what went wrong."""
    item = source.with_suffix(".o")
    link = (tools.linker, "-shared", "-z", "notext", "-o", str(library), str(item))
    for words in ((tools.assembler, "-o", str(item), str(source)), link):
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            return done.stderr[-300:]
    return ""


def command(*words: str) -> str:
    """What a command prints."""
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
