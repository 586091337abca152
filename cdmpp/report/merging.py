"""The report on data sets that were put together: what came of which folder, and where hosts disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cdmpp.data.agreement import Conflict
from cdmpp.data.union import DataUnion
from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.units import SHARE

_FOLDERS = (
    Column("folder", "folder", kind="text"),
    Column("rows", "rows"),
    Column("only_here", "only there"),
)
_CONFLICTS = (
    Column("device", "device", kind="text"),
    Column("record_id", "program", kind="text"),
    Column("task", "task", kind="text", rank=1),
    Column("first_s", "faster", "s", digits=4),
    Column("first_host", "by", kind="text"),
    Column("second_s", "slower", "s", digits=4),
    Column("second_host", "by", kind="text"),
    Column("difference", "apart", SHARE),
    Column("allowed", "allowed", SHARE),
)


def merge_report(union: DataUnion, conflicts: Sequence[Conflict], folders: Sequence[Path], out: Path | None) -> Report:
    """Report the folders, and each conflict with both of its values; ``out`` is what was written, None: nothing."""
    names = {task.task_id: task.op_name for task in union.tasks}
    counted, alone, sizes = Counter[Path](), Counter[Path](), Counter[int]()
    for program in union.programs:
        sizes[len(program)] += 1
        for row in program:
            counted.update(row.folders)
            alone.update(row.folders if len(row.folders) == 1 else ())
    places = [{"folder": str(one), "rows": counted[one], "only_here": alone[one]} for one in folders]
    different = sum(size * count for size, count in sizes.items())
    programs, several = sizes.total(), sizes.total() - sizes[1]
    disagree = len({(one.first.device, one.first.record_id) for one in conflicts})
    rows = [_row(one, union, names) for one in conflicts]
    agree = f"{several} measured more than once: {several - disagree} agree, {disagree} do not" if several else ""
    totals = (
        Total("rows", union.read, note=f"{different} of them different"),
        Total("programs", programs, note=agree),
        *([] if out is None else [Total("written", str(out))]),
    )
    answer = {
        "rows": union.read, "different": different, "programs": programs, "measured_more_than_once": several,
        "folders": places, "conflicts": rows, "written": None if out is None else str(out),
    }  # fmt: skip
    disputes = Table("Measurements that disagree", _CONFLICTS, rows, "" if rows else "none")
    return Report("Merged data", answer, totals, (disputes, Table("Folders", _FOLDERS, places)))


def _row(one: Conflict, union: DataUnion, names: dict[str, str]) -> dict[str, Any]:
    (first_s, second_s), (first, second) = one.latencies_s, (one.first, one.second)
    return {
        "device": first.device, "record_id": first.record_id, "task_id": first.task_id,
        "task": names.get(first.task_id) or first.task_id,
        "first_s": first_s, "first_host": _who(first.host, union.folders_of(first)),
        "second_s": second_s, "second_host": _who(second.host, union.folders_of(second)),
        "difference": one.difference, "allowed": one.allowed,
        "first_spread": first.spread, "second_spread": second.spread,
        "first_measured_at": first.measured_at, "second_measured_at": second.measured_at,
    }  # fmt: skip


def _who(host: str, folders: Sequence[Path]) -> str:
    return f"{host or 'an unnamed host'} in {', '.join(map(str, folders))}"
