"""torchtitan's published steps of Llama on A100 and H100, beside what is predicted for them.

No published step is in any fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.large_scores import Floats, Interval, Mask
from benchmarks.plans.titan_job import PARTS
from benchmarks.plans.torchtitan_data import Row, rows

_OURS = "**cdmpp**"
_COMMAND = "python -m benchmarks.plans torchtitan --data FOLDER --publish"


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge plans on the folder ``torchtitan`` of ``data``."""
    judged = Judged(rows(data / "torchtitan"))
    return [judged.scores(), judged.by_row(), judged.memory(), judged.carried()]


@dataclass(frozen=True)
class Judged:
    """Rows and what is predicted for them."""

    rows: Sequence[Row]

    @cached_property
    def part_s(self) -> dict[str, Floats]:
        each = [row.job.parts() for row in self.rows]
        names = (*PARTS, "bytes", "bytes of tensors", "low", "high")
        return {name: np.array([one[name] for one in each]) for name in names}

    @cached_property
    def measured_s(self) -> Floats:
        return np.array([row.step_s for row in self.rows])

    @cached_property
    def predicted_s(self) -> Floats:
        found: Floats = np.sum([self.part_s[name] for name in PARTS], axis=0)
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
        """Ends of the interval of 80 %: that of the jobs of other kinds, none of which it was read from is judged."""
        kinds = np.array([_kind(row) for row in self.rows])
        ends = np.empty((2, len(kinds)))
        for kind in {*kinds.tolist()}:
            own = kinds == kind
            others = Interval.of(self.predicted_s[~own], self.measured_s[~own])
            ends[:, own] = np.outer((others.low, others.high), self.predicted_s[own])
        return ends[0], ends[1]

    @property
    def within_kernels(self) -> Mask:
        """Rows within the interval of their kernels, all off alike."""
        low, high = (self.predicted_s * self.part_s[name] for name in ("low", "high"))
        return (low <= self.measured_s) & (self.measured_s <= high)

    def scores(self) -> dict[str, Any]:
        """Judge all rows that are answered, by GPU."""
        groups = {
            "64 A100": [row.gpu == "A100-80" for row in self.rows],
            "H100 of 500 W, bfloat16": [row.gpu != "A100-80" and row.precision == "bf16" for row in self.rows],
            **{name: [name == _kind(row) for row in self.rows] for name in _KINDS},
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
            "Steps of Llama 2 and 3 under FSDP2, tensor parallelism with sequence parallelism, context parallelism and "
            "pipelines, with torch.compile and float8; no published step is in any fit. Kernels are those of the "
            "shipped model, which saw no half precision on an A100, at the clock that the board's power sustains; "
            "attention is FlashAttention-2, as PyTorch took it then. Compiled blocks, float8 and its casts are "
            "cdmpp.plans.sources.compiled; a pipeline has as many micro-batches as ranks, torchtitan's default then. "
            "Chosen with these rows in sight: that the power limit acts within a kernel, and not on the average of a "
            "step, that a limit of 500 W is one of the clock only (kernels are those of a board of 700 W), and what "
            "was looked up in public sources because rows were off: FlashAttention-2 and its power, "
            "47 GB/s that NCCL reaches of adapters of 50, gathers of tensor ranks in float8. Jobs of 2025 compile "
            "their loss, those of December 2024 do not (torchtitan b7c7ed7, 9dec370). Compiled blocks take 1.22 times "
            "their kernels at the speed of a copy, a factor matched to what cdmpp's own runtime torch-compile predicts "
            "of a block of Llama 3 8B, and to no measurement. The interval of a row is that of the rows of "
            f"other kinds; that of the kernels, all off alike, holds {100 * self.within_kernels.mean():.0f} % of the "
            "rows. torchtitan prints the memory that the allocator reserved (max_reserved of 9dec370), which is "
            "followed stream by stream with expandable segments, as its script sets them; no row is in a fit. The "
            "command of the jobs on H200 does not show that setting: with PyTorch's own allocator their memory would "
            "be 10 % high. These rules were looked up in torch and torchtitan while the errors of memory were in sight."
        )
        return {
            "title": "torchtitan", "note": note, "commands": [_COMMAND],
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
                    f"{row.model}, {row.gpus} {row.gpu}", row.strategies,
                    f"{row.job.batch} x {row.job.sequence}", row.recomputed,
                    f"{row.precision}{', compiled' if row.is_compiled else ''}",
                    f"{measured:.3f}", f"{predicted:.3f}", f"{100 * (predicted / measured - 1):+.1f}",
                    *(f"{self.part_s[name][place]:.3f}" for name in PARTS), held, f"{self.held_gib[place]:.1f}",
                ]
            )  # fmt: skip
        return {
            "title": "torchtitan", "note": "Row by row: seconds of a step, and of its parts.",
            "commands": [_COMMAND],
            "columns": ["job", "strategies", "examples x tokens", "recomputed", "type", "measured", "predicted",
                        "off, %", *PARTS, "published GiB", "predicted GiB"],
            "rows": table,
        }  # fmt: skip

    def memory(self) -> dict[str, Any]:
        """Show by how much the reserved memory and the tensors alone are off, row by row."""
        tensors, table = self.part_s["bytes of tensors"] / 2**30, list[list[str]]()
        for place, row in enumerate(self.rows):
            if np.isnan(row.held_gib):
                continue
            off = [f"{100 * (one[place] / row.held_gib - 1):+.1f}" for one in (self.held_gib, tensors)]
            table.append(
                [
                    f"{row.model}, {row.gpus} {row.gpu}", row.strategies,
                    f"{row.precision}{', compiled' if row.is_compiled else ''}", f"{row.held_gib:.1f}",
                    f"{self.held_gib[place]:.1f}", off[0], f"{tensors[place]:.1f}", off[1],
                ]
            )  # fmt: skip
        return {
            "title": "torchtitan: memory", "note": _MEMORY, "commands": [_COMMAND],
            "columns": ["job", "strategies", "type", "published GiB", "reserved GiB", "off, %", "tensors GiB",
                        "tensors off, %"],
            "rows": table,
        }  # fmt: skip

    def carried(self) -> dict[str, Any]:
        """Show how far each kind of job is off, and by how much its spread exceeds its mean."""
        off = 100 * (self.predicted_s / self.measured_s - 1)
        held = 100 * (self.held_gib / self._held - 1)
        table = list[list[str]]()
        for name in _KINDS:
            own = np.array([_kind(row) == name for row in self.rows])
            known = own & np.isfinite(held)
            memory = f"{held[known].mean():+.1f}" if known.any() else ""
            share = 100 * np.abs(off[own]).sum() / np.abs(off).sum()
            shares = [100 * (self.part_s[part][own] / self.predicted_s[own]).mean() for part in PARTS]
            table.append(
                [name, str(own.sum()), f"{off[own].mean():+.1f}", f"{off[own].std():.1f}", f"{share:.0f}", memory,
                 *(f"{one:.0f}" for one in shares)]
            )  # fmt: skip
        return {
            "title": "torchtitan: what carries the error", "note": _CARRIES, "commands": [_COMMAND],
            "columns": ["rows", "number", "mean off, %", "spread, %", "of all errors, %", "memory off, %",
                        *(f"{part}, %" for part in PARTS)],
            "rows": table,
        }  # fmt: skip


_KINDS = (
    "FSDP on A100", "FSDP on H100 of 500 W", "FSDP on H100 of 500 W, 32,768 tokens", "FSDP on H200", "cp",
    "tp", "tp, asynchronous", "tp, pp", "tp, pp, cp",
)  # fmt: skip
"""Kinds of jobs by their strategies."""
_MEMORY = (
    "What tensors alone hold by the closed form, and what the allocator reserves for them. In between are the stream "
    "of gathered modules (two that follow each other, the root among them), that of scattered gradients, which nothing "
    "else may use at the loss, and gaps: logits, their copy in float32 and their logarithms leave holes that the "
    "gradient of the logarithms does not fit. The closed form counts what a loss saves twice, and gradients of both "
    "stages of a rank at once where an interleaved schedule scatters those of one before the other's begin."
)
_CARRIES = (
    "Mean and spread of predicted over measured seconds by kind of job, and what the predicted step is spent on. "
    "Context parallelism carries most. Ranks exchange keys and values of all heads, as torchtitan's Llama repeats "
    "them, and its compiled graphs wait for them at once. Steps of 8B on 1 and 2 ranks take as long as if each share "
    "of attention took about 5 s, and those on 4 and 8 as if each took 6.8 s, that of their own keys included, though "
    "the kernels have the same shapes: no exchange, which could not slow the first share down. torchtitan lets PyTorch "
    "choose between FlashAttention-2 and the memory-efficient kernel there, which is slower; by PyTorch's rules it is "
    "the first. Ranks that are not balanced would explain the rows of 4 and 8 ranks, too, and "
    "not that of 2: PyTorch balanced them then. Other steps on H100 are predicted fast, most where attention is long: "
    "it is taken to run at its full clock at 500 W, by a power that follows from its speed, since nobody published it; "
    "a clock of 0.76 would explain 32,768 tokens without context parallelism. Asynchronous exchanges between tensor "
    "ranks are predicted to hide more than they did; published steps gain 4 to 14 % by them. Scales of rows are from "
    "one public step on 8 GPUs without tensor ranks. Published and predicted memory are what the allocator reserved."
)


def _kind(row: Row) -> str:
    degrees = row.job.degrees
    given = [name for name in ("tp", "pp", "cp") if getattr(degrees, name) > 1]
    if given == ["tp"] and row.job.async_tp:
        return "tp, asynchronous"
    if given:
        return ", ".join(given)
    if row.job.sequence > 8192:
        return _KINDS[2]
    return {"A100-80": _KINDS[0], "H100-96": _KINDS[1], "H200": _KINDS[3]}[row.gpu]
