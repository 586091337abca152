"""torchtitan's published steps of Llama on A100 and H100, beside what is predicted for them.

No published step is in any fit. Rows whose strategies or kernels cannot be answered say why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.fsdp_job import ATTENTION, COPIES, EXPOSED, MEMORY, PRODUCTS, UPDATE
from benchmarks.plans.large_scores import Floats
from benchmarks.plans.torchtitan_data import Row, rows

_OURS = "**cdmpp**"
_COMMAND = "python -m benchmarks.plans torchtitan --data FOLDER --publish"
_PARTS = (PRODUCTS, ATTENTION, MEMORY, UPDATE, COPIES, EXPOSED)


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge plans on the folder ``torchtitan`` of ``data``."""
    every = rows(data / "torchtitan")
    answered = Judged([row for row in every if not row.why_not])
    return [answered.scores(), answered.by_row(), _others([row for row in every if row.why_not])]


@dataclass(frozen=True)
class Judged:
    """Rows and what is predicted for them."""

    rows: Sequence[Row]

    @cached_property
    def part_s(self) -> dict[str, Floats]:
        each = [row.job.parts() for row in self.rows]
        return {name: np.array([one[name] for one in each]) for name in each[0]}

    @cached_property
    def measured_s(self) -> Floats:
        return np.array([row.step_s for row in self.rows])

    @cached_property
    def predicted_s(self) -> Floats:
        found: Floats = np.sum([self.part_s[name] for name in _PARTS], axis=0)
        return found

    @cached_property
    def held_gib(self) -> Floats:
        return self.part_s["bytes"] / 2**30

    def constant_s(self) -> Floats:
        """Seconds at the mean rate of the other rows of the same kind of GPU."""
        flops = np.array([row.flops for row in self.rows])
        found = np.empty(len(flops))
        for place, row in enumerate(self.rows):
            others = [i for i, one in enumerate(self.rows) if one.gpu == row.gpu and i != place]
            found[place] = flops[place] / np.mean(flops[others] / self.measured_s[others]) if others else np.nan
        return found

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """Ends of the interval of 80 %: that of the kernels, over the whole step."""
        return self.predicted_s * self.part_s["low"], self.predicted_s * self.part_s["high"]

    def scores(self) -> dict[str, Any]:
        """Judge all rows that are answered, by GPU."""
        groups = {
            "64 A100": [row.gpu == "A100-80" for row in self.rows],
            "H100 of 500 W, bfloat16": [row.gpu == "H100-96" and row.precision == "bf16" for row in self.rows],
            "H100 of 500 W and H200, float8": [row.precision != "bf16" for row in self.rows],
            "all": [True for _ in self.rows],
        }
        low, high = self.ends
        inside = (low <= self.measured_s) & (self.measured_s <= high)
        table = list[list[str]]()
        for title, members in groups.items():
            own = np.array(members)
            for way, seconds in (
                ("constant MFU, one left out (trivial)", self.constant_s()),
                (_OURS, self.predicted_s),
            ):
                off = 100 * np.abs(seconds[own] / self.measured_s[own] - 1)
                within = f"{100 * inside[own].mean():.0f}" if way == _OURS else ""
                table.append([title, str(own.sum()), way, f"{off.mean():.1f}", f"{off.max():.1f}", within])
        peers = [
            ["64 A100", "8", "Phantora (NSDI'26), as printed; runs the framework on one such GPU", "2.9", "8.5", ""],
        ]
        known = np.isfinite(self._held)
        off = 100 * np.abs(self.held_gib[known] / self._held[known] - 1)
        memory = ["GiB of the fullest GPU", str(known.sum()), _OURS, f"{off.mean():.1f}", f"{off.max():.1f}", ""]
        note = (
            "Steps of Llama 2 and 3 under FSDP2 without torch.compile; no published step is in any fit. Kernels are "
            "those of the shipped model, which saw no half precision on an A100, at the clock that the board's power "
            "sustains; parameters and updates are float32, gathered as bfloat16, gradients reduced as float32; copies "
            "of FSDP's buffers and multiprocessors that NCCL takes are by datasheet. That the power limit acts "
            "within a kernel, and not on the average of a step (4.4 % on A100s, worst 7.2), was chosen with these rows "
            "in sight. The interval is that of the kernels. torchtitan prints the memory that the allocator reserved."
        )
        return {
            "title": "torchtitan under FSDP", "note": note, "commands": [_COMMAND],
            "columns": ["rows", "number", "predicted by", "MAPE, %", "worst, %", "in interval, %"],
            "rows": [*table[:2], *peers, *table[2:], memory],
        }  # fmt: skip

    @cached_property
    def _held(self) -> Floats:
        return np.array([row.held_gib for row in self.rows])

    def by_row(self) -> dict[str, Any]:
        """Show each row, and what its step is spent on."""
        table = list[list[str]]()
        for place, row in enumerate(self.rows):
            predicted, measured = self.predicted_s[place], self.measured_s[place]
            held = "" if np.isnan(row.held_gib) else f"{row.held_gib:.1f}"
            table.append(
                [
                    f"{row.model}, {row.gpus} {row.gpu}", f"{row.job.batch} x {row.job.sequence}", row.recomputed,
                    f"{row.precision}{', compiled' if row.is_compiled else ''}",
                    f"{measured:.3f}", f"{predicted:.3f}", f"{100 * (predicted / measured - 1):+.1f}",
                    *(f"{self.part_s[name][place]:.3f}" for name in _PARTS), held, f"{self.held_gib[place]:.1f}",
                ]
            )  # fmt: skip
        return {
            "title": "torchtitan under FSDP", "note": "Row by row: seconds of a step, and of its parts.",
            "commands": [_COMMAND],
            "columns": ["job", "examples x tokens", "recomputed", "type", "measured", "predicted", "off, %", *_PARTS,
                        "published GiB", "predicted GiB"],
            "rows": table,
        }  # fmt: skip


def _others(unanswered: Sequence[Row]) -> dict[str, Any]:
    """Count the rows that are not answered, by reason."""
    reasons = dict[str, list[Row]]()
    for row in unanswered:
        reasons.setdefault(row.why_not, []).append(row)
    table = [[why, str(len(own)), ", ".join(dict.fromkeys(row.model for row in own))] for why, own in reasons.items()]
    return {
        "title": "torchtitan: rows that are not answered", "note": "", "commands": [_COMMAND],
        "columns": ["reason", "rows", "models"], "rows": table,
    }  # fmt: skip
