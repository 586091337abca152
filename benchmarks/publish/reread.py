"""Shipped code vectors beside those of today's reader: which classes of programs differ, and those derived again.

``python -m benchmarks.publish.reread sample=165`` derives a few vectors of each data set and class anew and prints how
many are others. ``... again=epyc-genoa classes=softmax,elementwise`` derives those of these classes that read bytes
(masks, tokens) anew, and those of any class that say that a count is unknown, some seconds of a CPU each, and writes
them into the data set. Every record keeps which reader its vector is of. What is derived stays in ``scratch``: a killed
run goes on.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.publish.command_line import run
from benchmarks.publish.markdown import table
from cdmpp.data.codes import CODES_FOLDER, cached_codes
from cdmpp.data.derive import derive, record_keys, sources_of
from cdmpp.data.derived_table import read_codes, read_readers, write_codes
from cdmpp.data.records import read_records, read_tasks
from cdmpp.data.schema import Record
from cdmpp.machine_code.cpu.code_features import CODE_NAMES, CODE_READER
from cdmpp.programs.task import Task

DATA = Path("datasets")
SETS = ("epyc-genoa", "epyc-genoa-avx2", "epyc-genoa-training", "epyc-turin", "xeon-emeraldrapids", "xeon-icelake",
        "xeon-icelake-2c", "xeon-icelake-avx2")  # fmt: skip
SHIPPED_READER = "4"
"""Of vectors whose file does not say: all were derived on 2026-11-28."""
_SAME = 1e-3
_BYTES = re.compile(r'"(u?int8|bool)"')
_CYCLES, _UNKNOWN = (CODE_NAMES.index(name) for name in ("machine_cycles", "unknown_loops"))
COLUMNS = ("class", "reads bytes", "derived again", "changed", "simulated cycles, least to most")


def reads_bytes(task: Task) -> bool:
    """True where a buffer ahead of the first block holds bytes or truth values."""
    return bool(_BYTES.search(task.workload.split("# with T.sblock")[0]))


def anew(name: str, records: Sequence[Record], tasks: Mapping[str, Task], scratch: Path) -> dict[str, np.ndarray]:
    """Record id -> vector by today's reader, of those that can be compiled."""
    derive({"codes": (scratch / name, sources_of(records, tasks))}, 1, False, f"code vectors of {name}")
    keys = record_keys([r.record_id for r in records], [r.task_id for r in records], tasks)
    found = cached_codes(scratch / name)
    return {r.record_id: found[key] for r, key in zip(records, keys, strict=True) if key in found}


def drawn(most: int, seed: int = 0) -> list[tuple[str, Record]]:
    """Data set and record of about ``most`` programs, as many of each set, class and kind of input as there are."""
    strata: defaultdict[tuple[str, str, bool], list[Record]] = defaultdict(list)
    for name in SETS:
        tasks = read_tasks(DATA / name)
        for record in {record.record_id: record for record in read_records(DATA / name)}.values():
            task = tasks[record.task_id]
            strata[name, task.op_class, reads_bytes(task)].append(record)
    generator, queues = random.Random(seed), []
    for (name, _, _), records in sorted(strata.items()):
        generator.shuffle(records)
        queues.append([(name, record) for record in records])
    rounds = [pair for turn in range(most) for queue in queues for pair in queue[turn : turn + 1]]
    return rounds[:most]


def changes(pairs: Sequence[tuple[str, Record]], scratch: Path) -> list[list[str]]:
    """Rows of ``COLUMNS``."""
    found: defaultdict[tuple[str, bool], list[tuple[bool, float]]] = defaultdict(list)
    for name in SETS:
        tasks, shipped = read_tasks(DATA / name), read_codes(_part(name))
        records = {record.record_id: record for one, record in pairs if one == name}
        for record_id, code in anew(name, list(records.values()), tasks, scratch).items():
            task, before = tasks[records[record_id].task_id], shipped.get(record_id)
            if before is not None:
                cycles = float(np.exp2(code[_CYCLES] - before[_CYCLES]))
                kind = task.op_class, reads_bytes(task)
                found[kind].append((bool(np.abs(code - before).max() > _SAME), cycles))
    rows = []
    for (op_class, of_bytes), parts in sorted(found.items()):
        ratios = [ratio for changed, ratio in parts if changed]
        span = f"{min(ratios):.2f} - {max(ratios):.2f} of before" if ratios else "-"
        rows.append([op_class, "yes" if of_bytes else "no", str(len(parts)), str(len(ratios)), span])
    return rows


def derive_again(name: str, classes: Sequence[str], scratch: Path) -> tuple[int, int]:
    """Replace vectors of a data set; returns how many were derived anew, and how many of these are others."""
    tasks, shipped, readers = read_tasks(DATA / name), read_codes(_part(name)), read_readers(_part(name))
    records = {record.record_id: record for record in read_records(DATA / name)}
    wanted = [
        record
        for record_id, record in records.items()
        if record_id in shipped and (shipped[record_id][_UNKNOWN] > 0 or _is_of(tasks[record.task_id], classes))
    ]
    found = anew(name, wanted, tasks, scratch)
    changed = sum(bool(np.abs(code - shipped[one]).max() > _SAME) for one, code in found.items())
    by = {one: CODE_READER if one in found else readers.get(one, SHIPPED_READER) for one in shipped}
    write_codes(_part(name), {one: found.get(one, code) for one, code in shipped.items()}, by)
    return len(found), changed


def _is_of(task: Task, classes: Sequence[str]) -> bool:
    return task.op_class in classes and reads_bytes(task)


def _part(name: str) -> Path:
    return DATA / name / CODES_FOLDER / "part-00000.parquet"


def main(sample: int, again: str | None, classes: str, scratch: str) -> None:
    """Print what differs in a sample, or derive again."""
    if again:
        derived, changed = derive_again(again, classes.split(","), Path(scratch))
        print(f"{derived} vectors of {again} derived again, {changed} are others")
    if sample:
        print("\n".join(table(COLUMNS, changes(drawn(sample), Path(scratch) / "sample"))))


if __name__ == "__main__":
    run(main, sample=0, again=None, classes="softmax,elementwise", scratch="outputs/reread")
