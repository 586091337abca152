"""Counts of CPU programs beside what a processor executes, by callgrind: ``python -m benchmarks.counts``.

Needs TVM, valgrind and gcc on an x86-64 machine, about 20 minutes on one core. What was done is kept in
``executed.csv`` and is not done again; ``docs/results/counts.md`` is written from it. ``--before FOLDER``: a checkout
of an earlier version, whose counts of the same programs stand beside.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.counts.executed import Runnable, executed
from benchmarks.counts.kernels import arguments_of
from benchmarks.counts.page import Row, write_counts
from benchmarks.counts.programs import Case, cases, program_of
from cdmpp.devices.cores import get_core
from cdmpp.machine_code.cpu.code_features import KINDS
from cdmpp.machine_code.cpu.compile import Compiled, compiled
from cdmpp.machine_code.cpu.native import native_amounts

ROWS = Path(__file__).with_name("executed.csv")
TOGETHER = 12
CORE = "zen3"
"""Its cycles are of no interest here."""
log = logging.getLogger(__name__)
_COUNT = """
import json, sys
from cdmpp.devices.cores import get_core
from cdmpp.machine_code.cpu.native import native_amounts
for line in sys.stdin:
    amounts = native_amounts(*json.loads(line), get_core("zen3"))
    print(sum(amounts["machine_" + name] for name in {kinds!r}))
"""


def counted(code: Compiled) -> tuple[float, bool]:
    """Instructions that one run executes as the code vector says, and whether it calls that known."""
    amounts = native_amounts(*code, get_core(CORE))
    unknown = amounts["unknown_loops"] + amounts["machine_unmatched_loops"] > 0
    return sum(amounts[f"machine_{kind.name}"] for kind in KINDS), not unknown


def counted_by(checkout: Path, codes: Sequence[Compiled]) -> list[float]:
    """The same by another version of this project."""
    script = _COUNT.format(kinds=[kind.name for kind in KINDS])
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    lines = "".join(json.dumps(list(code)) + "\n" for code in codes)
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, input=lines, env=environment, cwd=checkout, capture_output=True, text=True, check=True
    )
    return [float(line) for line in done.stdout.split()]


def measure(batch: Sequence[Case], before: Path | None) -> list[Row]:
    """Rows of the cases that compile and run."""
    made: list[tuple[Case, Compiled, Runnable]] = []
    for case in batch:
        try:
            program = program_of(case)
            code = compiled(program)
        except Exception as error:  # noqa: BLE001 - TVM raises several types
            log.warning("%s is left out: %s", case.key, str(error).splitlines()[-1][:200])
            continue
        made.append((case, code, Runnable(code.assembly, arguments_of(program.module))))
    codes = [code for _, code, _ in made]
    earlier = counted_by(before, codes) if before else [None] * len(made)
    truth = executed([runnable for _, _, runnable in made]) if made else []
    return [
        Row(**asdict(case), executed=count, counted=round(counted(code)[0]), known=counted(code)[1], before=then)
        for (case, code, _), count, then in zip(made, truth, earlier, strict=True)
    ]


def measured(batch: Sequence[Case], before: Path | None) -> list[Row]:
    """The same, one by one where a program of the batch does not run."""
    try:
        return measure(batch, before)
    except subprocess.CalledProcessError as error:
        if len(batch) == 1:
            log.warning("%s is left out: %s", batch[0].key, (error.stderr or str(error))[-300:])
            return []
    return [row for case in batch for row in measured([case], before)]


def read_rows() -> list[Row]:
    """What is kept."""
    if not ROWS.exists():
        return []
    with ROWS.open(newline="") as file:
        return [Row.of(line) for line in csv.DictReader(file)]


def keep(rows: Sequence[Row]) -> None:
    """Add rows to what is kept."""
    fresh = not ROWS.exists()
    with ROWS.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(Row.__dataclass_fields__), lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def main() -> None:
    """Measure what is missing, and write the page."""
    from rich.console import Console
    from rich.progress import track

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recorded", type=int, default=240, help="recorded tasks besides the kernels")
    parser.add_argument("--before", type=Path, help="checkout of an earlier version")
    parser.add_argument("--page-only", action="store_true", help="only write the page")
    options = parser.parse_args()
    done = {row.key for row in read_rows()}
    missing = [case for case in cases(options.recorded) if case.key not in done] if not options.page_only else []
    batches = [missing[start : start + TOGETHER] for start in range(0, len(missing), TOGETHER)]
    for batch in track(batches, "counting", console=Console(stderr=True)):
        keep(measured(batch, options.before))
    write_counts(read_rows())


if __name__ == "__main__":
    main()
