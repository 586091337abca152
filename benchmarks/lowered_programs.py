"""Why programs are lowered before their features are read: ``python -m benchmarks.lowered_programs``.

Programs drawn of the data sets are read as they are scheduled and, as a check, all again after lowering. Writes
``docs/results/lowered-programs.md``.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.publish.markdown import table, write_page
from cdmpp.ast.compact_ast import CompactAST
from cdmpp.ast.extract import is_gpu_target
from cdmpp.ast.lowering import lower
from cdmpp.ast.native import summarize
from cdmpp.ast.unlowered import doubts, read_unlowered
from cdmpp.data.records import read_records, read_tasks
from cdmpp.programs.replay import parse_target, replay

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "lowered-programs.md"
DATA_SETS = {
    "CPU": (
        "xeon-icelake",
        "xeon-icelake-2c",
        "xeon-icelake-avx2",
        "xeon-emeraldrapids",
        "epyc-genoa",
        "epyc-genoa-avx2",
        "epyc-genoa-training",
        "epyc-turin",
    ),
    "CUDA": ("h100",),
}
PROGRAMS = {"CPU": 200, "CUDA": 600}
"""Of each data set at most, drawn with seed 0."""
HEAD = """# Programs that are lowered

Features of a scheduled program are read as it is scheduled where that surely gives the numbers that are read once TVM
has lowered it; a store in doubt is simplified by TVM alone. The rest is lowered as a whole, for these reasons; a
program may have several. What is read without lowering is compared with what is read after it, to the last bit.
Written by `python -m benchmarks.lowered_programs`. At most {most} programs are drawn of each data set (seed 0):
{names}."""


def main() -> None:
    read, lowered, differ = Counter[str](), Counter[str](), Counter[str]()
    reasons: dict[str, Counter[str]] = {kind: Counter() for kind in DATA_SETS}
    for kind, names in DATA_SETS.items():
        for module, target in (one for name in names for one in _drawn(name, PROGRAMS[kind])):
            gpu = is_gpu_target(target)
            (found,) = read_unlowered([module], gpu, True)
            if found is None:
                lowered[kind] += 1
                reasons[kind].update(doubts(module, gpu))
                continue
            read[kind] += 1
            differ[kind] += not _equal(found, summarize(lower(module, target), gpu))
    rows = [[kind, read[kind] + lowered[kind], read[kind], differ[kind], lowered[kind]] for kind in DATA_SETS]
    causes = Counter[str]()
    for counted in reasons.values():
        causes.update(counted)
    counts = [[reason, *(reasons[kind][reason] for kind in DATA_SETS)] for reason, _ in causes.most_common()]
    most = " (CPU) or ".join(f"{count:,}" for count in PROGRAMS.values()) + " (CUDA)"
    names_of_all = ", ".join(f"`{name}`" for names in DATA_SETS.values() for name in names)
    lines = [
        *HEAD.format(most=most, names=names_of_all).splitlines(),
        "",
        *table(["programs for", "drawn", "read", "of them different", "lowered"], rows),
    ]
    write_page(PAGE, [*lines, "", *table(["why they are lowered", *DATA_SETS], counts)])
    print(rows)


def _drawn(name: str, count: int) -> Any:
    folder = ROOT / "datasets" / name
    records, tasks = list(read_records(folder)), read_tasks(folder)
    for record in random.Random(0).sample(records, min(count, len(records))):
        program = replay(tasks[record.task_id].workload, record.schedule, record.target)
        yield program.module, parse_target(record.target)


def _equal(one: CompactAST, other: CompactAST) -> bool:
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(CompactAST)]
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


if __name__ == "__main__":
    main()
