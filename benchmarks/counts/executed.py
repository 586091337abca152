"""Instructions that compiled programs execute, counted by callgrind: exact, whatever else the machine does."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

DRIVER = Path(__file__).with_name("driver.c")
_LAMBDA = ".L__tvm_parallel_lambda"
_ALIGN = "\t.p2align\t4"
_OBJECT, _FUNCTION, _COST = re.compile(r"ob=(.*)"), re.compile(r"fn=(.*)"), re.compile(r"\+?-?\d+ (\d+)$")


class Runnable(NamedTuple):
    """One program."""

    assembly: str
    arguments: tuple[str, ...]
    """Of its PrimFunc, such as ``float32:1x8x14x14``."""


def executed(programs: Sequence[Runnable]) -> list[int]:
    """Instructions that one run of each takes in its own functions: what these call and TVM's wrapper are left out.

    Raises:
        subprocess.CalledProcessError: a program does not run, or valgrind is missing.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        _run("gcc", "-O2", str(DRIVER), "-o", str(folder / "driver"), "-ldl")
        words = []
        for i, program in enumerate(programs):
            source, library = folder / f"program{i}.s", folder / f"program{i}.so"
            source.write_text(_assembled_by_gnu(program.assembly))
            _run("gcc", "-shared", "-o", str(library), str(source), "-lm")
            words += [str(library), ",".join(program.arguments)]
        out = folder / "costs"
        flags = (
            "--compress-strings=no",
            "--compress-pos=no",
            "--dump-line=no",
            "--skip-plt=no",
            f"--callgrind-out-file={out}",
        )
        _run("valgrind", "--tool=callgrind", *flags, str(folder / "driver"), *words)
        costs = _costs(out.read_text())
    return [costs[f"program{i}.so"] for i in range(len(programs))]


def _assembled_by_gnu(assembly: str) -> str:
    """Without lines for debuggers and the alignment of loops, and with a symbol for the function that threads run."""
    lines = (line for line in assembly.splitlines() if line != _ALIGN)  # of data it ends otherwise
    kept = (line for line in lines if not line.startswith(("\t.file", "\t.loc")))
    return "\n".join(kept).replace(_LAMBDA, _LAMBDA.removeprefix(".L")) + "\n"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _costs(text: str) -> dict[str, int]:
    """Name of a library -> instructions of its functions that compute."""
    costs: defaultdict[str, int] = defaultdict(int)
    library = function = ""
    called = False
    for line in text.splitlines():
        if match := _OBJECT.match(line):
            library = Path(match[1]).name
        elif match := _FUNCTION.match(line):
            function = match[1]
        elif line.startswith("calls="):
            called = True
        elif match := _COST.match(line):
            if not called and ("compute_" in function or "__tvm_parallel_lambda" in function):
                costs[library] += int(match[1])
            called = False
    return costs
