"""Instructions inside functions that programs call: ``python -m benchmarks.counts.called`` writes ``called.csv``.

Each call is one of a small program under callgrind, so that the count is exact for the C library that is installed.
Valgrind shows programs a processor without AVX-512: a library may choose another variant of a function on one with it.
"""

from __future__ import annotations

import csv
import platform
import random
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.counts.executed import command
from benchmarks.publish.markdown import table

ROWS = Path(__file__).with_name("called.csv")
FUNCTIONS = ("expf", "logf", "erff", "tanhf", "sinf", "cosf", "powf")
_POSITIVE = ("logf", "powf")
_TWO = ("powf",)
_DRAWN = 60
SIZES = (4, 16, 64, 256, 1024, 4096, 65536)
"""Bytes that are set or copied, aligned as TVM aligns buffers."""
_SPECIAL = ("0.0f", "-0.0f", "1e-40f", "1e4f", "INFINITY", "NAN")


@dataclass(frozen=True)
class Inside:
    """Calls of one kind."""

    function: str
    argument: str
    calls: int
    least: int
    """Instructions inside one call."""
    middle: int
    most: int
    library: str
    """Its name and version."""


def calls_of(function: str, seed: int = 0) -> Mapping[str, list[str]]:
    """Kind of argument -> calls in C; none of them can be told by a compiler."""
    if function in ("memset", "memcpy"):
        other = "0" if function == "memset" else "second"
        return {f"{size:,} bytes": [f"{function}(first, {other}, same({size}))"] for size in SIZES}
    generator = random.Random(seed)
    low = 0.001 if function in _POSITIVE else -1.0

    def call(number: str) -> str:
        return f"result = {function}({number}" + (", 0.7f)" if function in _TWO else ")")

    drawn = {}
    for scale in (1, 20):
        title = f"from {low * scale:g} to {scale}"
        drawn[title] = [call(f"{generator.uniform(low * scale, scale):.7f}f") for _ in range(_DRAWN)]
    return {**drawn, "zeros, denormal, large, infinite, no number": [call(number) for number in _SPECIAL]}


def source(calls: Mapping[str, list[str]]) -> str:
    """A program with a function for each call: ``probe_K_N`` of kind K."""
    probes = [
        f"__attribute__((noinline)) void probe_{kind}_{i}(void) {{ {call}; }}"
        for kind, one in enumerate(calls.values())
        for i, call in enumerate(one)
    ]
    names = re.findall(r"void (probe_\w+)", "\n".join(probes))
    return "\n".join([
        "#include <math.h>\n#include <string.h>",
        "volatile float result;",
        "static char first[1 << 17] __attribute__((aligned(64))), second[1 << 17] __attribute__((aligned(64)));",
        "__attribute__((noinline)) size_t same(size_t n) { __asm__ volatile(\"\" : \"+r\"(n)); return n; }",
        *probes,
        "int main(void) {", *(f"  {name}();" for name in names), "  return first[1]; }",
    ])  # fmt: skip


def inside(text: str) -> dict[str, int]:
    """Name of a probe -> instructions inside the function of a library that it calls, from callgrind's output."""
    found: dict[str, int] = {}
    function, called, calls = "", "", 0
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "fn":
            function = value
        elif key == "cfn":
            called = value
        elif key == "calls":
            calls = int(value.split()[0])
        elif line[:1].isdigit() and calls:
            if function.startswith("probe_") and not called.startswith("same"):
                found[function] = found.get(function, 0) + int(line.split()[1])
            calls = 0
    return found


def measured(function: str) -> list[Inside]:
    """Rows of one function.

    Raises:
        subprocess.CalledProcessError: gcc or valgrind is missing or fails.
    """
    calls = calls_of(function)
    with TemporaryDirectory() as name:
        text, program, out = (Path(name) / one for one in ("calls.c", "calls", "costs"))
        text.write_text(source(calls))
        flags = ("-O1", "-fno-builtin", "-Wl,-z,now")
        command("gcc", *flags, str(text), "-o", str(program), "-lm")
        tool = ("valgrind", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no", "--dump-line=no")
        subprocess.run([*tool, f"--callgrind-out-file={out}", str(program)], check=True, capture_output=True)
        costs = inside(out.read_text())
    rows = []
    for kind, (title, one) in enumerate(calls.items()):
        amounts = [costs[f"probe_{kind}_{i}"] for i in range(len(one))]
        shares = min(amounts), round(median(amounts)), max(amounts)
        rows.append(Inside(function, title, len(one), *shares, " ".join(platform.libc_ver())))
    return rows


def read_inside() -> list[Inside]:
    """What is kept."""
    numbers = {one.name for one in fields(Inside) if one.type == "int"}
    with ROWS.open(newline="") as file:
        return [
            Inside(**{name: int(text) if name in numbers else text for name, text in line.items()})  # type: ignore[arg-type]
            for line in csv.DictReader(file)
        ]


def called_section() -> list[str]:
    """Lines of the page."""
    rows = read_inside()
    headings = ["function", "argument", "calls", "least", "median", "most"]
    lines = [[r.function, r.argument, str(r.calls), *(f"{n:,}" for n in (r.least, r.middle, r.most))] for r in rows]
    text = f"""
## Inside called functions

Instructions inside one call, under callgrind, with {rows[0].library} on a processor without AVX-512, which counts each
byte of a repeated move (`rep movsb`) as one. Where least and most are the same, a call always costs that; where they
differ, the number that it is given decides. The code vector has the number of calls, and none for what they execute.
Written by `python -m benchmarks.counts.called`.
"""
    return [*text.splitlines(), "", *table(headings, lines, left=2)]


def main() -> None:
    """Measure all, and keep it."""
    with ROWS.open("w", newline="") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(Inside)], lineterminator="\n")
        writer.writeheader()
        for function in (*FUNCTIONS, "memset", "memcpy"):
            writer.writerows(asdict(row) for row in measured(function))


if __name__ == "__main__":
    main()
