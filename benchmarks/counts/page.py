"""``docs/results/counts.md``: counted instructions beside executed ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.counts.instructions import KINDS
from benchmarks.counts.programs import pool_sizes
from benchmarks.counts.table import Row
from benchmarks.publish.markdown import table, write_page

PAGE = Path(__file__).parents[2] / "docs" / "results" / "counts.md"
_HEAD = """# Executed instructions

How many instructions of its own a compiled CPU program executes: what the [code vector](../architecture.md) counts,
beside what the processor does. Every basic block of a program has a counter, raised by moves alone, so that the counts
are exact whatever else the machine does; the programs ran on a processor with AVX-512 (Zen 5). Inputs are random
floats, masks that are set, as when programs are measured, and zeros of other types; one thread, TVM 0.27 with LLVM 22.
Functions that a program calls (`expf`, `memcpy`) are counted as calls on both sides. Tasks are those of networks
(`xeon-icelake`), of training steps (`epyc-genoa-training`: gradients and optimizers) and kernels of odd sizes, as many
of each class of operators; schedules are TVM's own and sampled ones. Seed 0. Written by `python -m benchmarks.counts`.
"""
_UNKNOWN = """
Unknown are programs in which data may change the count by more than a hundredth: branches over masks that are computed
from floats, places of maxima and gradients of maximum pooling. They carry the flag `count unknown`. Where both ways of
such a branch meet again, the difference of the longest and the shortest bounds what data can change. Classes stand
here as often as each other: in the mix of the recorded tasks the share of unknown ones is **{mix}**.
"""
_KINDS = """
Loads and stores are operands in memory; what calls, returns, pushes and pops do to the stack is on neither side. Float
arithmetic is sums, products, both at once, minima and maxima, by the bits of its vectors. Each executed instruction is
told apart by rules of the benchmark's own. Known programs only.
"""
_ARM = """
## AArch64

Programs for `neoverse-n1`, assembled for Debian and run by `qemu-aarch64` (qemu 7.2): their blocks count themselves, so
that no plug-in is needed. How often AArch64 code runs is not carried out: its loops are matched with those of the IR.
Known are programs of which each loop has found one, on either side, and no loop has other branches than the IR has,
unless these matter for no more than a hundredth. No model reads them. Written by
`python -m benchmarks.counts --arm 120`.
"""
_WORST = 10


def write_counts(rows: Sequence[Row], more: Sequence[str] = ()) -> None:
    """Write the page; ``more`` stands at its end."""
    everything = [row for row in rows if not row.error]
    ran, arm = ([row for row in everything if row.arm == there] for there in (False, True))
    lines = _HEAD.splitlines()
    lines += ["", "## By class of operators", "", *_shares(ran, "class", lambda row: row.op_class)]
    lines += _UNKNOWN.format(mix=f"{_unknown_in_mix(ran):.1%}").splitlines()
    lines += ["", "## By processor", "", *_shares(ran, "mcpu", lambda row: row.mcpu)]
    lines += ["", "## By origin and schedule", "", *_shares(ran, "origin, schedule", _origin)]
    lines += ["", "## By kind of instruction", *_KINDS.splitlines(), "", *_kinds([row for row in ran if row.known])]
    worst = sorted(ran, key=lambda row: -abs(np.log(row.ratio())))[:_WORST]
    lines += ["", f"## The {_WORST} farthest off", ""]
    headings = ["program", "class", "mcpu", "schedule", "known", "executed", "counted", "ratio", "block: runs/counted"]
    lines += table(headings, [_listed(row) for row in worst], left=5)
    lines += ["", "## What did not run", "", *_failures(rows)]
    if arm:
        lines += [*_ARM.splitlines(), "", *_shares(arm, "class", lambda row: row.op_class)]
    lines += more
    write_page(PAGE, lines)


def _origin(row: Row) -> str:
    return f"{row.origin}, {row.schedule}"


def _unknown_in_mix(rows: Sequence[Row]) -> float:
    """Share of unknown programs where each class of a data set has the weight of its recorded tasks."""
    sizes, total, unknown = pool_sizes(), 0.0, 0.0
    for pool, size in sizes.items():
        mine = [row.known for row in rows if (row.op_class, row.origin) == pool]
        if mine:
            total += size
            unknown += size * (1.0 - float(np.mean(mine)))
    return unknown / max(total, 1.0)


def _listed(row: Row) -> list[str]:
    known = "yes" if row.known else "no: data decide"
    counts = [f"{side['instructions']:,}" for side in (row.executed, row.counted)]
    return [row.name, row.op_class, row.mcpu, row.schedule, known, *counts, f"{row.ratio():.3f}", row.worst]


def _failures(rows: Sequence[Row]) -> list[str]:
    reasons = Counter(_reason(row) for row in rows if row.error)
    return table(["reason", "programs"], [[reason, str(n)] for reason, n in reasons.most_common()], left=1)


def _reason(row: Row) -> str:
    if row.error == "TVM has no such program":
        return "the task has fewer schedules than were asked for, or TVM cannot compile it"
    codes = {
        "139": "it reads or writes outside its arguments, given indices of zero",
        "132": "an instruction is unknown here",
    }
    return next((text for code, text in codes.items() if row.error.endswith(code)), row.error)


def _kinds(rows: Sequence[Row]) -> list[str]:
    lines = []
    for kind in KINDS:
        mine = [row for row in rows if row.executed[kind] or row.counted[kind]]
        off = np.array([abs(row.ratio(kind) - 1) for row in mine])
        if len(mine):
            middle = np.median([row.ratio(kind) for row in mine])
            shares = [f"{(off < limit).mean():.1%}" for limit in (0.02, 0.1)]
            lines.append([kind.replace("_", " "), str(len(mine)), f"{middle:.3f}", f"{(off == 0).mean():.1%}", *shares])
    return table(["kind", "programs with any", "median ratio", "exact", "within 2 %", "within 10 %"], lines)


def _shares(rows: Sequence[Row], title: str, group_of: Callable[[Row], str]) -> list[str]:
    groups = {name: [row for row in rows if group_of(row) == name] for name in sorted({group_of(row) for row in rows})}
    headings = [title, "programs", "median ratio", "exact", "within 2 %", "within 10 %", "unknown", "known beyond 2 %"]
    headings += ["known beyond 10 %"]
    return table(headings, [_summed(name, group) for name, group in {**groups, "**all**": list(rows)}.items()])


def _summed(name: str, rows: Sequence[Row]) -> list[str]:
    off = np.array([abs(row.ratio() - 1) for row in rows])
    known = np.array([row.known for row in rows])
    middle = f"{np.median([row.ratio() for row in rows]):.3f}"
    shares = [
        f"{share:.1%}" for share in ((off == 0).mean(), (off < 0.02).mean(), (off < 0.1).mean(), 1 - known.mean())
    ]
    return [name, str(len(rows)), middle, *shares, *(str(int((known & (off >= limit)).sum())) for limit in (0.02, 0.1))]
