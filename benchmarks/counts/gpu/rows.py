"""What is kept of each kernel: ``kernels.csv``."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.counts.gpu.kernels import GPU_KERNELS, GpuCase

ROWS = Path(__file__).with_name("kernels.csv")
KINDS = (
    *("instructions", "ffma", "fadd", "fmul", "special", "convert", "whole", "shuffle"),
    *("global load", "global store", "shared load", "shared store", "local", "barrier", "control"),
    *("load sectors", "store sectors", "shared passes"),
)
"""Instructions of all warps, in all and by class; sectors of 32 bytes of requests to global memory, passes through the
banks of shared memory."""


@dataclass(frozen=True)
class KernelRow:
    """A kernel of a program, both sides by ``KINDS``."""

    name: str
    arch: int
    schedule: str
    kernel: str
    blocks: int
    threads: int
    off: float
    """Largest difference of the interpreter's result from the tensor program's, by the largest result."""
    executed: str
    """Of the whole grid, numbers with spaces between."""
    counted: str
    """Four warps of the reader, taken for all."""
    alike: float
    """Share of warps for which the reader issues each instruction as often, with the same sectors and passes."""
    worst: str
    """The instruction that a warp is said to issue most wrongly: executed/counted."""
    error: str = ""
    """Why one side has nothing."""

    @property
    def op_class(self) -> str:
        """The class of its operator."""
        return GPU_KERNELS[self.name][0]

    def sides(self, kind: str) -> tuple[float, float]:
        """Executed and counted."""
        place = KINDS.index(kind)
        return float(self.executed.split()[place]), float(self.counted.split()[place])

    @property
    def key(self) -> tuple[str, int, str, str]:
        """What tells it from all others."""
        return self.name, self.arch, self.schedule, self.kernel


def row_of(case: GpuCase, kernel: str, blocks: int, threads: int, **more: object) -> KernelRow:
    """A row of a case."""
    empty = {"off": 0.0, "executed": "", "counted": "", "alike": 0.0, "worst": "", **more}
    return KernelRow(case.name, case.arch, case.schedule, kernel, blocks, threads, **empty)  # type: ignore[arg-type]


def read_rows() -> list[KernelRow]:
    """What is kept; of a kernel that was counted again only the last."""
    if not ROWS.exists():
        return []
    kinds = {one.name: {"int": int, "float": float}.get(str(one.type), str) for one in fields(KernelRow)}
    with ROWS.open(newline="") as file:
        rows = [KernelRow(**{name: kinds[name](text) for name, text in line.items()}) for line in csv.DictReader(file)]
    return list({row.key: row for row in rows}.values())


def write_rows(rows: Sequence[KernelRow]) -> None:
    """Keep rows."""
    with ROWS.open("w", newline="") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(KernelRow)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in sorted(rows, key=lambda row: row.key))
