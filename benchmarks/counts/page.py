"""``docs/results/counts.md``: counted instructions beside executed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.counts.programs import Case
from benchmarks.publish.markdown import table, write_page

PAGE = Path(__file__).parents[2] / "docs" / "results" / "counts.md"
_HEAD = """# Executed instructions

How many instructions of its own a compiled CPU program executes: what the [code vector](../architecture.md) counts,
beside what valgrind's callgrind does. Random inputs, one thread, TVM 0.27 with LLVM 22, processors without AVX-512,
which valgrind cannot run. Functions that a program calls (`expf`, `memcpy`) are counted as calls on both sides.
No-operations that an assembler puts in front of loops to align them are on neither.
Written by `python -m benchmarks.counts`.
"""
_UNKNOWN = """
Unknown are programs in which data decide how often more than a hundredth of the instructions run, such as a loop over a
mask. They carry the flag `count unknown`.
"""
_WORST = 10


@dataclass(frozen=True)
class Row(Case):
    """A case with its counts."""

    executed: int = 0
    """By callgrind."""
    counted: int = 0
    """By the code vector."""
    known: bool = True
    """False where the code vector says that its count is an estimate."""
    before: float | None = None
    """By an earlier version."""

    @classmethod
    def of(cls, line: Mapping[str, str]) -> Row:
        """A line of the file that keeps them."""
        case = {name: line[name] for name in ("name", "op_class", "mcpu", "schedule")}
        before = float(line["before"]) if line["before"] else None
        counts = {name: int(line[name]) for name in ("draw", "executed", "counted")}
        return cls(**case, **counts, known=line["known"] == "True", before=before)  # type: ignore[arg-type]

    @property
    def ratio(self) -> float:
        """Counted to executed."""
        return self.counted / max(self.executed, 1)


def write_counts(rows: Sequence[Row]) -> None:
    """Write the page."""
    lines = _HEAD.splitlines()
    lines += ["", "## By class of operators", "", *_shares(rows, "class", lambda row: row.op_class)]
    lines += ["", "## By processor", "", *_shares(rows, "mcpu", lambda row: row.mcpu)]
    lines += ["", "## By schedule", "", *_shares(rows, "schedule", lambda row: row.schedule), *_UNKNOWN.splitlines()]
    worst = sorted(rows, key=lambda row: -abs(np.log(row.ratio)))[:_WORST]
    lines += ["", f"## The {_WORST} farthest off", ""]
    headings = ["program", "mcpu", "schedule", "known", "executed", "counted", "ratio"]
    lines += table(headings, [_listed(row) for row in worst], left=4)
    write_page(PAGE, lines)


def _listed(row: Row) -> list[str]:
    known = "yes" if row.known else "no: data decide"
    return [row.name, row.mcpu, row.schedule, known, f"{row.executed:,}", f"{row.counted:,}", f"{row.ratio:.3f}"]


def _shares(rows: Sequence[Row], title: str, group_of: Callable[[Row], str]) -> list[str]:
    groups = {name: [row for row in rows if group_of(row) == name] for name in sorted({group_of(row) for row in rows})}
    headings = [title, "programs", "median ratio", "within 2 %", "within 10 %", "unknown", "known beyond 10 %"]
    headings += ["before: median ratio", "before: within 2 %", "before: within 10 %"]
    return table(headings, [_summed(name, group) for name, group in {**groups, "**all**": list(rows)}.items()])


def _summed(name: str, rows: Sequence[Row]) -> list[str]:
    off = np.array([abs(row.ratio - 1) for row in rows])
    known = np.array([row.known for row in rows])
    middle = f"{np.median([row.ratio for row in rows]):.3f}"
    line = [name, str(len(rows)), middle, f"{(off < 0.02).mean():.1%}", f"{(off < 0.1).mean():.1%}"]
    line += [f"{1 - known.mean():.1%}", str(int((known & (off >= 0.1)).sum()))]
    earlier = np.array([row.before / max(row.executed, 1) for row in rows if row.before is not None])
    if not len(earlier):
        return [*line, "–", "–", "–"]
    off = abs(earlier - 1)
    return [*line, f"{np.median(earlier):.3f}", f"{(off < 0.02).mean():.1%}", f"{(off < 0.1).mean():.1%}"]
