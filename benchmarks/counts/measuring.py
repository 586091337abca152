"""Cases -> rows: compiled, run, and read."""

from __future__ import annotations

import logging
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from benchmarks.counts.blocks import counting
from benchmarks.counts.counted import CountedFunction, counted, taken_for
from benchmarks.counts.executed import Executed, Runnable, executed
from benchmarks.counts.instructions import KINDS, instruction
from benchmarks.counts.kernels import arguments_of
from benchmarks.counts.programs import Case, programs_of
from benchmarks.counts.table import Row, fields_of
from cdmpp.devices.cores import get_core
from cdmpp.machine_code.cpu.compile import Compiled, compiled
from cdmpp.machine_code.cpu.native import native_amounts
from cdmpp.platform.paths import cache_root

CORE = "zen3"
"""Its cycles are of no interest here."""
_SEPARATOR = "\0"
log = logging.getLogger(__name__)


def _place(case: Case) -> Path:
    """Where the compiled text of a case is kept, so that it can be read again."""
    return cache_root() / "counts" / f"{zlib.crc32(case.key.encode()):08x}-{case.mcpu}.z"


def keep_code(case: Case, code: Compiled, ran: Executed) -> None:
    """Keep what a case compiled to, and how often its blocks ran."""
    path = _place(case)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = _SEPARATOR.join((case.key, *code, " ".join(map(str, ran.runs))))
    path.write_bytes(zlib.compress(text.encode()))


def read_code(case: Case) -> tuple[Compiled, Executed] | None:
    """What is kept of a case."""
    path = _place(case)
    if not path.exists():
        return None
    key, llvm_ir, assembly, runs = zlib.decompress(path.read_bytes()).decode().split(_SEPARATOR)
    code = Compiled(llvm_ir, assembly)
    return (code, Executed(counting(assembly, case.arm), tuple(map(int, runs.split())))) if key == case.key else None


def codes(cases: Sequence[Case]) -> Iterator[tuple[Case, Compiled, Runnable]]:
    """Compiled cases; those that TVM cannot draw or compile are left out."""
    for _, group in groupby(cases, key=lambda case: case.group):
        try:
            for case, program in programs_of(list(group)):
                code = compiled(program)
                yield case, code, Runnable(code.assembly, arguments_of(program.module))
        except Exception as error:  # noqa: BLE001 - TVM raises several types
            log.warning("left out: %s", (str(error).splitlines() or [repr(error)])[-1][:200])


def rows_of(cases: Sequence[Case]) -> list[Row]:
    """Rows of the cases that compile, all for x86-64 or all for AArch64."""
    made = list(codes(cases))
    there = {case.key for case, _, _ in made}
    rows = [_failed(case, "TVM has no such program") for case in cases if case.key not in there]
    ran = executed([runnable for _, _, runnable in made], arm=cases[0].arm) if made else []
    for (case, code, _), one in zip(made, ran, strict=True):
        if not one.error:
            keep_code(case, code, one)
        rows.append(row_of(case, code, one))
    return rows


def _failed(case: Case, error: str) -> Row:
    return Row(**fields_of(case), error=error[-100:])  # type: ignore[arg-type]


def row_of(case: Case, code: Compiled, ran: Executed) -> Row:
    """The row of a program that ran, or did not."""
    if ran.error:
        return _failed(case, ran.error)
    try:
        functions = counted(code)
        amounts = native_amounts(*code, get_core(CORE))
    except Exception as error:  # noqa: BLE001 - whatever the reader does is to be seen in the table
        return _failed(case, f"not read: {error}")
    truth = ran.program.runs_by_function(ran.runs)
    unknown = amounts["unknown_loops"] + amounts["machine_unmatched_loops"] > 0
    said: defaultdict[str, float] = defaultdict(float)
    did: defaultdict[str, int] = defaultdict(int)
    for function in functions.values():
        for line, runs, _ in function.lines:
            said[line] += runs
    for lines in truth.values():
        for line, often in lines:
            did[line] += often
    return Row(
        **fields_of(case),  # type: ignore[arg-type]
        executed=summed(did, lambda line: instruction(line, case.arm)),
        counted=summed(said, lambda line: taken_for(line, case.arm)),
        known=not unknown,
        worst=farthest_block(truth, functions),
    )


def summed(runs: Mapping[str, float], amounts_of: Callable[[str], Sequence[int]]) -> dict[str, int]:
    """Amounts by kind of lines that run so often."""
    total = np.zeros(len(KINDS))
    for line, often in runs.items():
        if often:
            total += often * np.array(amounts_of(line))
    return dict(zip(KINDS, (round(amount) for amount in total.tolist()), strict=True))


def farthest_block(truth: dict[str, list[tuple[str, int]]], functions: dict[str, CountedFunction]) -> str:
    """Where counts differ most, as ``function block executed/counted``; empty where they do not."""
    worst, told = 0.0, ""
    for name, lines in truth.items():
        function = functions.get(name)
        if function is None or len(function.lines) != len(lines):
            return f"{name} is not the same function"
        off: dict[tuple[str, int], tuple[float, float]] = {}
        for (_, did), (_, said, block) in zip(lines, function.lines, strict=True):
            before = off.get((block, did), (0.0, said))[0]
            off[block, did] = before + abs(did - said), said
        for (block, did), (total, said) in off.items():
            if total > worst:
                worst, told = total, f"{name.removeprefix('__tvm_')} {block} {did}/{said:.10g}"
    return told


def run_together(cases: Sequence[Case]) -> list[Row]:
    """Rows of a batch, one by one where the tools fail at one of them."""
    try:
        return rows_of(cases)
    except (subprocess.CalledProcessError, ValueError) as error:
        if len(cases) == 1:
            return [_failed(cases[0], str(error))]
    return [row for case in cases for row in run_together([case])]
