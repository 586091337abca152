"""The part of ``docs/results/counts.md`` that is about GPU kernels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.counts.gpu.rows import KINDS, KernelRow, read_rows
from benchmarks.publish.markdown import table

_HEAD = """
## GPU kernels

{n} kernels that TVM makes of {programs} programs (default and sampled schedules of small operators), compiled by nvcc
13.0 for `sm_80` and `sm_90` and carried out by an interpreter that shares nothing with the reader but the text of the
listing: every lane of every warp, floats, branches and memory included. Their results are those of the tensor programs
(farthest: {off} of the largest result), so that what was issued is what a processor issues, as far as an instruction is
one. Where lanes part and meet follows the convergence barriers of the code; passes through the banks of shared memory
follow what is published of them, as the reader's do. The reader executes four warps of a grid with unknown data and
takes them for all: *alike* is the share of single warps that it executes as they are, sectors and passes included.
Counts are of whole grids, which are small: 1 to 6400 blocks, where those at an edge weigh more than in a network.
**No profiler has seen any of it**: `benchmarks/counts/gpu/ncu.py` prepares these kernels for five minutes of one, and
was never run. Written by `python -m benchmarks.counts.gpu`.
"""
_WHY = """
Of {apart} kernels in which a warp is not executed as it is, {bsync} differ most in a `BSYNC`, which each path of lanes
that parted issues by itself, where the reader lets them meet in front of it: one instruction, whose count no profiler
has settled. All else comes from the four warps: those at an edge of a grid of few blocks, and those of a block in which
one does what others do not, stand for more than they are. The reader is left as it is, as models that ship were trained
on its counts; a mean over all warps of small grids would be exact but for `BSYNC`.
"""
_FARTHEST = 12


def gpu_section() -> list[str]:
    """The lines of the section."""
    everything = read_rows()
    rows = [row for row in everything if not row.error]
    if not rows:
        return []
    programs = len({(row.name, row.arch, row.schedule) for row in rows})
    head = _HEAD.format(n=len(rows), programs=programs, off=f"{max(row.off for row in rows):.1g}")
    groups: list[tuple[str, Callable[[KernelRow], bool]]] = [
        *((f"`sm_{arch}`", lambda row, arch=arch: row.arch == arch) for arch in sorted({row.arch for row in rows})),
        *((one, lambda row, one=one: row.op_class == one) for one in sorted({row.op_class for row in rows})),
        ("at least 8 blocks", lambda row: row.blocks >= 8),
        ("**all**", lambda row: True),
    ]
    body = []
    for name, belongs in groups:
        mine = [row for row in rows if belongs(row)]
        alike = np.mean([row.alike for row in mine])
        whole = np.mean([row.alike == 1 for row in mine])
        body.append([name, str(len(mine)), *_shares(mine, "instructions"), f"{whole:.1%}", f"{alike:.1%}"])
    heads = [*_heads("kernels"), "kernels with all warps alike", "warps alike"]
    lines = [*head.splitlines(), "", *table(heads, body, left=1), "", "Kind by kind, of kernels with any:", ""]
    kinds = []
    for kind in KINDS:
        mine = [row for row in rows if any(row.sides(kind))]
        if mine:
            kinds.append([kind, str(len(mine)), *_shares(mine, kind)])
    apart = [row for row in rows if row.alike < 1]
    why = _WHY.format(apart=len(apart), bsync=sum(" BSYNC " in row.worst for row in apart))
    lines += [*table(_heads("kind"), kinds, left=1), *why.splitlines(), ""]
    far = sorted(rows, key=lambda row: -abs(np.log(_ratio(row, "instructions"))))[:_FARTHEST]
    farthest = ["kernel", "arch", "schedule", "blocks of threads", "executed", "counted", "warps alike", "one warp off"]
    lines += table(farthest, [_listed(row) for row in far], left=3)
    refused = Counter(_reason(row) for row in everything if row.error)
    if refused:
        lines += ["", "Not compared:", ""]
        lines += table(["reason", "kernels"], [[reason, str(count)] for reason, count in refused.most_common()], left=1)
    return lines


def _heads(first: str) -> list[str]:
    return [first, "kernels", "median ratio", "within 2 %", "within 10 %", "farthest"]


def _ratio(row: KernelRow, kind: str) -> float:
    did, said = row.sides(kind)
    return said / did if did else (1.0 if not said else 1e9)


def _shares(rows: Sequence[KernelRow], kind: str) -> list[str]:
    ratio = np.array([_ratio(row, kind) for row in rows])
    off = abs(ratio - 1)
    farthest = ratio[off.argmax()]
    shares = [f"{(off < limit).mean():.1%}" for limit in (0.02, 0.1)]
    return [f"{np.median(ratio):.3f}", *shares, f"{farthest:.2f}" if farthest < 1e6 else "counted, not executed"]


def _listed(row: KernelRow) -> list[str]:
    did, said = row.sides("instructions")
    return [
        row.name, f"sm_{row.arch}", row.schedule, f"{row.blocks} of {row.threads}", f"{did:,.0f}", f"{said:,.0f}",
        f"{row.alike:.0%}", f"`{row.worst}`" if row.worst else "",
    ]  # fmt: skip


def _reason(row: KernelRow) -> str:
    """Without registers and places, so that the same reasons count together."""
    text = row.error
    if found := re.search(r"the instruction '(\S+) [^']*'", text):
        text = f"{text.split(':')[0]}: `{found[1]}` {text.rpartition('(')[2].rstrip(')')}"
    return re.sub(r"instruction \d+", "an instruction", text)
