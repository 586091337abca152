"""Misses of caches beside those that the AST's features say, and callgrind beside counted blocks.

``python -m benchmarks.counts.caches`` adds to ``caches.csv`` what of ``--programs`` is missing, about a second each.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import math
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.counts.executed import Runnable, executed
from benchmarks.counts.instructions import implied, instruction
from benchmarks.counts.kernels import arguments_of
from benchmarks.counts.measuring import summed
from benchmarks.counts.programs import MCPUS, programs_of
from benchmarks.counts.table import Row, read_rows
from benchmarks.counts.valgrind import seen
from benchmarks.publish.markdown import table
from cdmpp.ast.extract import extract
from cdmpp.ast.leaf_features import LEAF_NAMES
from cdmpp.machine_code.cpu.compile import compiled

ROWS = Path(__file__).with_name("caches.csv")
MOST_INSTRUCTIONS = 2_000_000
TOGETHER = 8
_LINE = 64
_KIB = {"first": 32, "last": 1024}
_WITHOUT_AVX512 = MCPUS[:7]
_FIRST, _LAST = LEAF_NAMES.index("crowded_miss_bytes_32kib"), LEAF_NAMES.index("miss_bytes_1024kib")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CacheRow:
    """A program: what callgrind saw, what the counted blocks say, and what the features say."""

    key: str
    op_class: str
    schedule: str
    callgrind: str
    """Instructions, loads, stores, as JSON."""
    blocks: str
    """The same by blocks that count their runs."""
    first_level: int
    """Misses of 32 KiB in 8 ways."""
    last_level: int
    """Misses of 1 MiB in 16 ways."""
    said_first: int
    """Lines that the features say."""
    said_last: int
    buffers: int
    """Lines of all arguments and of what one block leaves for another, each buffer whole."""

    def seen(self, level: str) -> int:
        """Misses of the ``first`` or ``last`` level."""
        return self.first_level if level == "first" else self.last_level

    def said(self, level: str, whole: bool) -> int:
        """Lines that the features say; ``whole``: where all buffers fit together no store finds them gone again."""
        lines = self.said_first if level == "first" else self.said_last
        fits = whole and self.buffers * _LINE <= 1024 * _KIB[level]
        return min(lines, self.buffers) if fits else lines


def buffer_lines(module: Any) -> int:
    """Lines of the arguments of ``main`` and of the buffers that it allocates, each whole."""
    import tvm
    import tvm_ffi

    def lines(buffer: Any) -> int:
        count = math.prod(int(extent) for extent in buffer.shape)
        return -(-count * -(-tvm.DataType(str(buffer.dtype)).bits // 8) // _LINE)

    found = [lines(parameter) for parameter in module["main"].params]

    def note(block: Any) -> None:
        found.extend(lines(buffer) for buffer in block.alloc_buffers)

    tvm_ffi.structural_walk(module["main"].body, [(tvm.s_tir.SBlock, note)], order="pre")
    return sum(found)


def measure(batch: Sequence[Row]) -> list[CacheRow]:
    """Rows of programs that are drawn again for their ASTs."""
    made = []
    for _, group in groupby(batch, key=lambda row: row.group):
        for case, program in programs_of(list(group)):
            made.append((case, program, Runnable(compiled(program).assembly, arguments_of(program.module))))
    if not made:
        return []
    runnable = [one for *_, one in made]
    found = []
    for (case, program, _), ran, one in zip(made, executed(runnable), seen(runnable), strict=True):
        if ran.error:
            continue
        leaves = np.exp2(extract(program.module, program.target).leaf_features.astype(np.float64)) - 1
        runs: defaultdict[str, int] = defaultdict(int)
        for lines in ran.program.runs_by_function(ran.runs).values():
            for line, often in lines:
                runs[line] += often
        did = summed(runs, instruction)
        stack = [sum(often * implied(line)[i] for line, often in runs.items()) for i in (0, 1)]
        found.append(
            CacheRow(
                key=case.key,
                op_class=case.op_class,
                schedule=case.schedule,
                callgrind=json.dumps([one.instructions, one.loads, one.stores]),
                blocks=json.dumps([did["instructions"], did["loads"] + stack[0], did["stores"] + stack[1]]),
                first_level=one.first_level,
                last_level=one.last_level,
                said_first=round(leaves[:, _FIRST].sum() / _LINE),
                said_last=round(leaves[:, _LAST].sum() / _LINE),
                buffers=buffer_lines(program.module),
            )
        )
    return found


def read_caches() -> list[CacheRow]:
    """What is kept."""
    if not ROWS.exists():
        return []
    numbers = {one.name for one in fields(CacheRow) if one.type == "int"}
    with ROWS.open(newline="") as file:
        lines = list(csv.DictReader(file))
    return [CacheRow(**{name: int(text) if name in numbers else text for name, text in line.items()}) for line in lines]  # type: ignore[arg-type]


def keep(rows: Sequence[CacheRow]) -> None:
    """Add rows to what is kept."""
    fresh = not ROWS.exists()
    with ROWS.open("a", newline="") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(CacheRow)], lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def wanted(programs: int) -> list[Row]:
    """The programs that callgrind can run in a moment, one of each draw, as many of each class."""
    by_class: dict[str, list[Row]] = {}
    for row in read_rows():
        small = not row.error and row.executed["instructions"] < MOST_INSTRUCTIONS
        if small and row.place == 0 and row.mcpu in _WITHOUT_AVX512:
            by_class.setdefault(row.op_class, []).append(row)
    found: list[Row] = []
    for place in range(max(map(len, by_class.values()), default=0)):
        found += [rows[place] for rows in by_class.values() if place < len(rows)]
    return found[:programs]


_TEXT = """
## Caches

{n} programs under callgrind's cache simulator (valgrind 3.19: {ways}; a line has 64
bytes), which has seen nothing of their arguments, beside the lines that the features of their
[ASTs](../architecture.md) say: `crowded_miss_bytes_32kib` and `miss_bytes_1024kib`. These are sums over stores, each of
which begins with empty caches, and know neither registers spilled to the stack nor what one store leaves in the cache
for the next: they were not made to be exact, and models are trained on them as they are. Wanted: a median within 5 %,
90 % within 20 %.
"""
_WHOLE = """
Most of it is told more than once: an array that one store leaves in the cache is new to the next, so that softmaxes and
norms, whose stores share their arrays, come out twice too high. Where all buffers of a program fit a cache together, no
more lines miss than the buffers have; told so (the features are as they were: models read them), it is this. What is
left are programs that do not fit, those farthest off by little, of which the features say that they find nothing again;
reads under a condition, counted for each element of the result (concatenations); and moves that are a call of `memcpy`,
which is not the program's own.
"""
_ORACLE = """
## Callgrind beside counted blocks

The same programs, instructions and accesses of every kind, those of calls, returns, pushes and pops included. Callgrind
counts the lanes of gathers and of masked accesses one by one: loads and stores differ where there are such. Where the
two count other instructions, callgrind tells more; why is not explained yet, and such programs are left out of the
table above.
"""


def cache_sections() -> list[str]:
    """The sections of the page that are written from what is kept."""
    everything = read_caches()
    rows = [row for row in everything if json.loads(row.callgrind)[0] == json.loads(row.blocks)[0]]
    if not rows:
        return []
    lines = _TEXT.format(n=len(rows), ways="32 KiB in 8 ways, 1 MiB in 16 ways").splitlines()
    told = _table(rows, whole=False)
    whole = _table(rows, whole=True)
    return [*lines, "", *told, *_WHOLE.splitlines(), "", *whole, *_ORACLE.splitlines(), "", *_oracle(everything)]


def _table(rows: Sequence[CacheRow], whole: bool) -> list[str]:
    body = []
    for level, kib in _KIB.items():
        fits = [row for row in rows if row.buffers * _LINE <= 1024 * kib]
        groups = {"all": list(rows), "whose buffers fit": fits}
        if not whole:
            groups |= {name: [r for r in rows if r.op_class == name] for name in sorted({r.op_class for r in rows})}
        for name, mine in groups.items():
            ratio = np.array([row.said(level, whole) / max(row.seen(level), 1) for row in mine])
            off = abs(ratio - 1)
            shares = [f"{(off < limit).mean():.1%}" for limit in (0.05, 0.2)]
            middle = f"{np.median(ratio):.3f}"
            body.append([f"{kib} KiB", name, str(len(mine)), middle, *shares, f"{np.quantile(ratio, 0.9):.2f}"])
    heads = ["cache", "class", "programs", "median ratio", "within 5 %", "within 20 %", "90th percentile"]
    return table(heads, body, left=2)


def _oracle(rows: Sequence[CacheRow]) -> list[str]:
    both = np.array([[json.loads(row.callgrind), json.loads(row.blocks)] for row in rows], np.float64)
    ratio = both[:, 1] / np.maximum(both[:, 0], 1)
    body = [
        [
            name,
            str(len(rows)),
            f"{np.median(ratio[:, i]):.4f}",
            f"{(ratio[:, i] == 1).mean():.1%}",
            f"{abs(ratio[:, i] - 1).max():.2%}",
        ]
        for i, name in enumerate(("instructions", "loads", "stores"))
    ]
    return table(["kind", "programs", "median ratio", "exact", "farthest"], body)


def main() -> None:
    """Measure what is missing."""
    from rich.console import Console
    from rich.progress import track

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=320)
    options = parser.parse_args()
    done = {row.key for row in read_caches()}
    missing = [row for row in wanted(options.programs) if row.key not in done]
    batches = [missing[start : start + TOGETHER] for start in range(0, len(missing), TOGETHER)]
    for batch in track(batches, "simulating", console=Console(stderr=True)):
        try:
            keep(measure(batch))
        except subprocess.CalledProcessError as error:
            log.warning("left out: %s", (error.stderr or str(error))[-200:])


if __name__ == "__main__":
    main()
