"""Counts of CPU programs beside what a processor executes: ``python -m benchmarks.counts``.

Needs TVM and gcc on an x86-64 machine with AVX-512, about 25 minutes on one core; ``--arm`` groups of AArch64 programs
need ``qemu-aarch64`` and ``aarch64-linux-gnu-gcc``. What was done is kept in ``executed.csv.xz`` and is not done again;
several processes may run at once with a ``--part`` each. ``--again`` reads machine code that is kept once more.
``docs/results/counts.md`` is written from the table, and those of ``benchmarks.counts.caches``, ``.called``, ``.speed``
and ``.gpu``.
"""

from __future__ import annotations

import argparse
import logging
import time
import zlib
from itertools import groupby

from benchmarks.counts.caches import cache_sections
from benchmarks.counts.called import called_section
from benchmarks.counts.gpu.section import gpu_section
from benchmarks.counts.measuring import read_code, row_of, run_together
from benchmarks.counts.page import write_counts
from benchmarks.counts.programs import Case, cases
from benchmarks.counts.speed import speed_section
from benchmarks.counts.table import Row, add_rows, read_rows, write_rows

TOGETHER = 24
"""Programs that are run in one go."""


def batches(missing: list[Case]) -> list[list[Case]]:
    """Cases by what is drawn together, AArch64 apart."""
    found: list[list[Case]] = []
    for _, group in groupby(missing, key=lambda case: case.group):
        group = list(group)
        if not found or len(found[-1]) >= TOGETHER or found[-1][0].arm != group[0].arm:
            found.append([])
        found[-1] += group
    return found


def main() -> None:
    """Count what is missing, and write the page."""
    from rich.console import Console
    from rich.progress import track

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recorded", type=int, default=1150, help="groups of recorded tasks besides the kernels")
    parser.add_argument("--arm", type=int, default=0, help="groups of recorded tasks for AArch64")
    parser.add_argument("--part", default="0/1", help="such as 1/4: the second of four parts")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many")
    parser.add_argument("--again", action="store_true", help="read kept machine code again where counts differed")
    parser.add_argument("--page-only", action="store_true", help="only write the page")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    start, (part, parts) = time.monotonic(), map(int, options.part.split("/"))
    if not options.page_only and not options.again:
        done = {row.key for row in read_rows()}
        mine = [
            case for case in cases(options.recorded, options.arm) if zlib.crc32(case.group.encode()) % parts == part
        ]
        missing = [case for case in mine if case.key not in done]
        for batch in track(batches(missing), "counting", console=Console(stderr=True)):
            if time.monotonic() - start > 60 * options.minutes:
                break
            add_rows(run_together(batch))
    rows = write_rows(counted_again) if options.again else write_rows()
    write_counts(rows, [*called_section(), *speed_section(), *cache_sections(), *gpu_section()])


def counted_again(rows: list[Row]) -> list[Row]:
    """The rows as the reader counts now, where the machine code is kept and the counts were not the same or unknown."""
    found = []
    for row in rows:
        settled = row.error or (row.known and row.executed == row.counted)
        kept = None if settled else read_code(row)
        found.append(row_of(row, *kept) if kept else row)
    return found


if __name__ == "__main__":
    main()
