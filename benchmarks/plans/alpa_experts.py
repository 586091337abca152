"""Alpa's GPT with experts on 16 to 64 V100, from runs on up to 8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plans.alpa_experts_runs import ALPA, DEEP, Row, measured_s, parts, read
from benchmarks.plans.alpa_latency import links
from benchmarks.plans.large_scores import Floats, Interval
from benchmarks.plans.scores import least_absolute
from cdmpp.collectives.collective import Collective

_MOST_FITTED = 8
_EXCHANGED = 100_000_000
"""Bytes of the exchange whose interval is that of links."""
_OURS = "**cdmpp**"
_COMMAND = "python -m benchmarks.plans alpa_experts --data FOLDER --publish"


@dataclass(frozen=True)
class Judged:
    """Rows on 16 GPUs and more, and those that factors are fitted to."""

    few: Sequence[Row]
    many: Sequence[Row]
    every: Sequence[Row]

    def measured(self, rows: Sequence[Row]) -> Floats:
        return np.array([measured_s(self.every, row) for row in rows])

    def predicted(self, rows: Sequence[Row], without: Row | None = None) -> Floats:
        """Seconds by the factors of rows on few GPUs but one."""
        computing, tokens = self.factors(without)
        found = [parts(row) for row in rows]
        return np.array(
            [
                computing[row.framework] * one["compute"] + tokens * one["tokens"] + one["rest"]
                for row, one in zip(rows, found, strict=True)
            ]
        )

    def factors(self, without: Row | None = None) -> tuple[Mapping[str, float], float]:
        """Fit computing of each framework, and the exchange of tokens inside a node, by absolute relative errors."""
        own = [row for row in self.few if row is not without]
        found = [parts(row) for row in own]
        columns = [[one["compute"] * (row.framework == name) for name in (ALPA, DEEP)] + [one["tokens"]]
                   for row, one in zip(own, found, strict=True)]  # fmt: skip
        fixed = np.array([one["rest"] for one in found])
        alpa, deep, tokens = least_absolute(np.array(columns), fixed, self.measured(own))
        return {ALPA: float(alpa), DEEP: float(deep)}, float(tokens)

    @property
    def interval(self) -> Interval:
        """That of rows on few GPUs, each by the others."""
        found = np.array([self.predicted([row], row)[0] for row in self.few])
        return Interval.of(found, self.measured(self.few))

    def covered(self, rows: Sequence[Row]) -> float:
        """Return the share of rows within their intervals, in per cent.

        What is fitted has the interval of rows on few GPUs, exchanges that no row was fitted to that of their links.
        """
        own, every = self.interval, self.predicted(rows)
        rest = np.array([parts(row)["rest"] for row in rows])
        ends = [_of_links(row.gpus) for row in rows]
        low = (every - rest) * own.low + rest * [one.low for one in ends]
        high = (every - rest) * own.high + rest * [one.high for one in ends]
        measured = self.measured(rows)
        return float(100 * ((measured >= low) & (measured <= high)).mean())


@cache
def _of_links(gpus: int) -> Interval:
    """Factors from the seconds of an exchange of all ranks to the ends of its interval, as the product gives them."""
    found = links(gpus).whole(Collective("all_reduce", _EXCHANGED, gpus, links(gpus).backend))
    return Interval(found.low_s / found.latency_s, found.high_s / found.latency_s)


def tables(data: Path) -> list[dict[str, Any]]:
    """Judge plans on the folder ``alpa-osdi22`` of ``data``."""
    every = read(data / "alpa-osdi22")
    known = [row for row in every if not row.why_not]
    few = [row for row in known if row.gpus <= _MOST_FITTED]
    own = Judged(few, [row for row in known if row.gpus > _MOST_FITTED], every)
    return [_scores(own), _by_row(own)]


def _scores(own: Judged) -> dict[str, Any]:
    measured, predicted = own.measured(own.many), own.predicted(own.many)
    nominal = np.array([sum(parts(row).values()) for row in own.many])
    constant = float(np.mean([row.tflops for row in own.few]))
    trivial = measured * [row.tflops / constant for row in own.many]
    others = [row for row in own.every if row.why_not and row.gpus > _MOST_FITTED]
    table = list[list[str]]()
    is_alpa = np.array([row.framework == ALPA for row in own.many])
    for title, chosen in (("all that are answered", np.ones_like(is_alpa)), ("of these, Alpa's", is_alpa)):
        for way, seconds in (
            ("constant TFLOPS (trivial)", trivial),
            ("cdmpp, nothing fitted", nominal),
            (_OURS, predicted),
        ):
            off = 100 * np.abs(seconds[chosen] / measured[chosen] - 1)
            rows = [row for row, keep in zip(own.many, chosen, strict=True) if keep]
            covered = f"{own.covered(rows):.0f}" if way == _OURS else ""
            table.append([title, str(len(off)), way, f"{off.mean():.1f}", f"{np.median(off):.1f}", covered])
    computing, tokens = own.factors()
    inside = 100 * np.abs(own.predicted(own.few) / own.measured(own.few) - 1)
    note = (
        "Seconds of a step of 1,024 examples with experts in every second block, on up to eight p3.16xlarge. Plans "
        "are those that the artifact names, as plans of the product: stages, replicas, and experts divided over the "
        "GPUs of a stage, blocks that run forward again, exchanges that nothing hides. The plan of 64 GPUs was not "
        "published: its stages are nodes, with as many micro-batches as its search had; of pipelines "
        "without divided operators the best number of micro-batches counts. DeepSpeed sends tokens as Alpa "
        "does, and its gradients as its configuration says (overlap_comm, reduce_scatter). Fitted to "
        f"runs on up to 8 GPUs alone: computing x {computing[ALPA]:.2f} of Alpa and x {computing[DEEP]:.2f} of "
        f"DeepSpeed, and x {tokens:.2f} what tokens take inside a node; links "
        "between nodes are on paper, 25 Gbit/s. On up to 8 GPUs the error "
        f"is {inside.mean():.1f} % (median {np.median(inside):.1f}). Not answered: "
        f"{'; '.join(row.why_not for row in others)}. The interval is that of the rows on up to 8 GPUs, each by the "
        "others, for what was fitted to them, and that of links known by their datasheet alone for other exchanges; "
        "that the first one is too narrow for these was seen on these rows."
    )
    return {
        "title": "Alpa: experts on 16 to 64 GPUs, from up to 8", "note": note, "commands": [_COMMAND],
        "columns": ["rows", "number", "predicted by", "MAPE, %", "median, %", "in interval, %"], "rows": table,
    }  # fmt: skip


def _by_row(own: Judged) -> dict[str, Any]:
    predicted, table = own.predicted(own.many), list[list[str]]()
    total = len(own.many)
    for row, seconds in zip(own.many, predicted, strict=True):
        measured, found = measured_s(own.every, row), parts(row)
        off = 100 * (seconds / measured - 1)
        computing, tokens = own.factors()
        told = "latency" if row.latency_s else "TFLOPS"
        table.append([
            row.method, str(row.gpus), told, f"{measured:.1f}", f"{seconds:.1f}", f"{off:+.0f}",
            f"{abs(off) / total:.1f}", f"{computing[row.framework] * found['compute']:.1f}",
            f"{tokens * found['tokens']:.1f}", f"{found['rest']:.1f}",
        ])  # fmt: skip
    return {
        "title": "Alpa: experts, what carries the error",
        "note": (
            "Row by row; points of the mean error. A third is DeepSpeed's on four nodes, whose gradients of every "
            "micro-batch would need more than the whole step took at the 1.65 GB/s that links of 25 Gbit/s are taken "
            "to reach by their datasheet; Alpa's on two nodes took as long as at 1.1 GB/s. Stages of one GPU take "
            "half as long again on two nodes as on one, as those of Wide-ResNet did, and nothing tells why. How Alpa "
            "sends tensors from one mesh of GPUs to another is left out."
        ),
        "commands": [_COMMAND],
        "columns": ["method", "GPUs", "told", "measured, s", "predicted, s", "off, %", "points", "computing, s",
                    "tokens, s", "other exchanges, s"],
        "rows": table,
    }  # fmt: skip
