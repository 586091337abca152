"""llm-foundry's measured FSDP steps of MPT models on A100 and H100, beside what is predicted for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.fsdp_job import ATTENTION, BLOCKS, COPIES, EXPOSED, MEMORY, PRODUCTS, UPDATE
from benchmarks.plans.large_scores import COLUMNS, Floats, Interval, Mask, line, of_one, of_terms, out_of_fold
from benchmarks.plans.mpt_data import SIZES, Row, rows

_COMMAND = "python -m benchmarks.plans mpt --data FOLDER --publish"
_SEED = 0
_LEAST = 2
"""Sizes from which a larger one is predicted at least."""
_LARGE = ("7b", "13b", "30b", "70b")
_OURS = "**cdmpp**, a factor a part"
_TERMS = (
    f"{PRODUCTS}, A100", f"{PRODUCTS}, H100", f"{PRODUCTS} in float8, H100", f"{ATTENTION}, A100", f"{ATTENTION}, H100",
    MEMORY, f"{COPIES}, {EXPOSED}, {UPDATE}", BLOCKS,
)  # fmt: skip


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge plans on the folder ``mpt-fsdp`` of ``data``."""
    judged = Judged(rows(data / "mpt-fsdp"))
    return [judged.splits(), judged.causes()]


@dataclass(frozen=True)
class Judged:
    """Rows and what is predicted for them."""

    rows: Sequence[Row]

    @cached_property
    def measured_s(self) -> Floats:
        return np.array([row.step_s for row in self.rows])

    @cached_property
    def is_h100(self) -> Mask:
        return np.array([row.gpu.startswith("h100") for row in self.rows])

    @cached_property
    def sizes(self) -> list[str]:
        return [row.size for row in self.rows]

    @cached_property
    def part_s(self) -> dict[str, Floats]:
        each = [row.job.parts() for row in self.rows]
        return {name: np.array([one[name] for one in each]) for name in each[0]}

    @cached_property
    def nominal_s(self) -> Floats:
        """Seconds of each step with nothing fitted."""
        names = (PRODUCTS, ATTENTION, MEMORY, UPDATE, COPIES, EXPOSED)
        found: Floats = np.sum([self.part_s[name] for name in names], axis=0)
        return found

    @cached_property
    def terms(self) -> Floats:
        """(n, terms) predicted seconds of each part of each step, and the blocks that run in it."""
        part_s, halves = self.part_s, ~np.array([row.is_float8 for row in self.rows])
        on = (~self.is_h100, self.is_h100 & halves, self.is_h100 & ~halves)
        rest = part_s[COPIES] + part_s[EXPOSED] + part_s[UPDATE]
        attention = [part_s[ATTENTION] * kind for kind in (~self.is_h100, self.is_h100)]
        columns = [*(part_s[PRODUCTS] * kind for kind in on), *attention, part_s[MEMORY], rest, part_s[BLOCKS]]
        return np.stack(columns, axis=1)

    def predicted(self, seen: Mask, asked: Mask) -> Floats:
        """Seconds of the rows asked for, by factors of those that may be seen."""
        return of_terms(self.terms, self.measured_s, seen)[asked]

    @cached_property
    def baseline_terms(self) -> Floats:
        """(n, terms) operations of products and of attention by GPU, with those that run again, and weights moved."""
        found = list[list[float]]()
        for row, h100 in zip(self.rows, self.is_h100, strict=True):
            job = row.job
            tokens = job.batch * job.batches * job.sequence
            again = 4 / 3 if job.recompute == "full" else 1.0
            weights = 12 * job.model.layers * job.model.width**2
            products, attention = 6 * weights * tokens * again, 12 * job.model.layers * job.model.width * again
            attention *= job.sequence * tokens
            kinds = [float(one) for one in (not h100, h100)]
            terms = [products * kind for kind in kinds] + [attention * kind for kind in kinds]
            found.append([*terms, tokens * job.model.layers * job.model.width, 4 * weights * job.batches, 1.0])
        return np.array(found)

    def nearest(self, seen: Mask, asked: Mask) -> Floats:
        """Seconds by the rate of the row that is most alike: GPU, size, length, ranks and examples."""
        axes = np.array(
            [
                [8 * (row.gpu == "h100_80gb"), 2 * (row.gpu == "a100_80gb"), np.log2(row.job.model.width),
                 np.log2(row.job.sequence), 0.25 * np.log2(row.job.ranks), 2 * (row.job.recompute == "full"),
                 4 * row.is_float8]
                for row in self.rows
            ],
            float,
        )  # fmt: skip
        rate = np.array([row.flops for row in self.rows]) / self.measured_s
        distance = np.abs(axes[asked][:, None] - axes[seen][None]).sum(axis=2)
        return np.array([row.flops for row in self.rows])[asked] / rate[seen][distance.argmin(axis=1)]

    def constant(self, seen: Mask, asked: Mask) -> Floats:
        """Seconds by the median rate of the rows of the same kind of GPU."""
        flops, found = np.array([row.flops for row in self.rows]), np.empty(len(self.rows))
        for kind in (self.is_h100, ~self.is_h100):
            found[kind] = of_one(flops, self.measured_s, seen & kind)[kind]
        return found[asked]

    def splits(self) -> dict[str, Any]:
        """Judge one size left out, and large ones by small ones."""
        everything, measured = np.ones(len(self.rows), bool), self.measured_s
        large = np.array([one in _LARGE for one in self.sizes])
        ways = {
            "operations a second of the median row, by GPU (trivial)": self.constant,
            "operations a second of the nearest row": self.nearest,
            "seven terms of operations, tokens and weights": lambda seen, asked: of_terms(
                self.baseline_terms, measured, seen
            )[asked],
            _OURS: self.predicted,
        }
        table = [line("nothing", "all", "**cdmpp**", self.nominal_s, measured)]
        for way, predicted in ways.items():
            seconds, places = out_of_fold(self.sizes, everything, predicted)
            interval = self._interval() if way == _OURS else None
            table.append(line("other sizes", "one size left out", way, seconds, measured[places], interval))
        for way, predicted in ways.items():
            interval = None
            if way == _OURS:
                interval = self._interval_ahead(~large)
            seconds = predicted(~large, large)
            table.append(line("125m to 3b", "7b and larger", way, seconds, measured[large], interval))
        shuffled = measured.copy()
        shuffled[~large] = np.random.default_rng(_SEED).permutation(measured[~large])
        failed = of_terms(self.terms, shuffled, ~large)[large]
        table.append(line("125m to 3b", "7b and larger", "cdmpp, fitted to permuted seconds", failed, measured[large]))
        seen = of_terms(self.terms, measured, everything)
        factors = np.linalg.lstsq(self.terms, seen, rcond=None)[0]
        told = ", ".join(f"{name} {value:.3g}" for name, value in zip(_TERMS, factors, strict=True))
        note = (
            f"{len(self.rows)} steps under FSDP on 8 to 128 GPUs, 125 million to 70 billion parameters, 512 to 65,536 "
            "tokens. Kernels are those of the shipped model at the clock that the board sustains, of a GPT-2 of the "
            "same sizes, with FlashAttention-2 where the rows ran an older kernel of Triton; FSDP1, which copies "
            "nothing. The loss is FlashAttention's, AdamW updates one tensor after the other, and rows of mixed "
            "precision reduce gradients in float32, as the authors' configurations have it. One factor of 0 or "
            "more a part, and seconds a block, by relative errors of the rows that may be "
            f"seen; of all rows they are: {told}. The interval of 80 % is that of rows predicted by other sizes of the "
            "rows fitted on; that of larger sizes is of rows predicted by smaller sizes only, each by two or more. The "
            "authors chose the micro-batches."
        )
        return {"title": "MPT under FSDP", "note": note, "commands": [_COMMAND], "columns": COLUMNS, "rows": table}

    def _interval_ahead(self, seen: Mask) -> Interval:
        """Return the interval of sizes larger than all that were seen: of each but the first two, from smaller ones.

        Rows are left out whose kind of GPU and product no smaller size has.
        """
        sizes = np.array([SIZES.index(one) for one in self.sizes])
        apart, measured = list[Floats](), list[Floats]()
        for size in sorted({*sizes[seen].tolist()})[_LEAST:]:
            has_factor = (self.terms[seen & (sizes < size)] > 0).any(axis=0)
            asked = seen & (sizes == size) & ((self.terms <= 0) | has_factor).all(axis=1)
            apart.append(self.predicted(seen & (sizes < size), asked))
            measured.append(self.measured_s[asked])
        return Interval.of(np.concatenate(apart), np.concatenate(measured))

    def _interval(self) -> Interval:
        """Interval of each size, from the others; their mean, since sizes are judged together."""
        ends = list[tuple[float, float]]()
        for size in SIZES:
            seen = np.array([one != size for one in self.sizes])
            if seen.all():
                continue
            apart, places = out_of_fold(self.sizes, seen, self.predicted)
            own = Interval.of(apart, self.measured_s[places])
            ends.append((own.low, own.high))
        return Interval(*np.mean(ends, axis=0).tolist())

    def causes(self) -> dict[str, Any]:
        """Say which rows carry the error of one size left out."""
        everything = np.ones(len(self.rows), bool)
        seconds, places = out_of_fold(self.sizes, everything, self.predicted)
        off = np.empty(len(places))
        off[places] = 100 * (seconds / self.measured_s[places] - 1)
        groups = dict[tuple[str, str], list[int]]()
        for place, row in enumerate(self.rows):
            lengths = "8,192 tokens and more" if row.job.sequence >= 8192 else "up to 4,096 tokens"
            for kind in (("size", row.size), ("GPU", row.gpu), ("length", lengths), ("ranks", str(row.job.ranks))):
                groups.setdefault(kind, []).append(place)
            if row.is_float8:
                groups.setdefault(("type", "float8"), []).append(place)
        share = {name: self.part_s[name] / self.nominal_s for name in (PRODUCTS, ATTENTION, MEMORY)}
        table = [
            [f"{kind}: {name}", str(len(own)), f"{np.abs(off[own]).mean():.1f}", f"{off[own].mean():+.1f}",
             *(f"{100 * one[own].mean():.0f}" for one in share.values())]
            for (kind, name), own in sorted(groups.items(), key=lambda one: (one[0][0], -np.abs(off[one[1]]).mean()))
        ]  # fmt: skip
        return {
            "title": "MPT under FSDP: what carries the error", "commands": [_COMMAND],
            "note": "One size left out, by rows; and what the predicted step is spent on.",
            "columns": ["rows", "number", "MAPE, %", "bias, %", *(f"{name}, %" for name in share)], "rows": table,
        }  # fmt: skip
