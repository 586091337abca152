"""Framed: a synchrony that holds for the middle of a run; before and after it workers train without a commit.

The same processes so show how long a batch takes without servers, seconds before and after a job, and during it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cdmpp.steps.decisions import Decisions, Next
from cdmpp.steps.synchrony import Synchrony

Spans = list[list[tuple[float, float]]]
"""Begin and end of every batch of each worker."""


@dataclass(frozen=True)
class Framed(Synchrony):
    """``inner`` from ``begin_s`` to ``end_s``; it is told times since ``begin_s``, and no batch outside."""

    name = "framed"
    title = "another one, between times without commits"

    inner: Synchrony
    begin_s: float
    end_s: float
    spans: Spans = field(default_factory=list, compare=False)
    """Batches of the last run, filled by it."""

    def decisions(self, workers: int) -> Decisions:
        inner: Any = self.inner.decisions(workers)
        self.spans[:] = [[] for _ in range(workers)]
        since, after_batch, pulled = [0.0] * workers, inner.after_batch, inner.pulled

        def frame(worker: int, now_s: float) -> Next:
            self.spans[worker].append((since[worker], now_s))
            since[worker] = now_s
            return after_batch(worker, now_s - self.begin_s) if self.begin_s <= now_s < self.end_s else Next.TRAIN

        def note(worker: int, now_s: float) -> Sequence[int]:
            since[worker] = now_s
            return pulled(worker, now_s)

        inner.after_batch, inner.pulled = frame, note
        return inner

    def batch_seconds(self) -> Mapping[str, list[list[float]]]:
        """Seconds of the batches before, during and after the job, by worker; the first batch of all is left out."""
        parts: dict[str, list[list[float]]] = {"before": [], "during": [], "after": []}
        for own in self.spans:
            parts["before"].append([end - begin for begin, end in own[1:] if end < self.begin_s])
            inside = [end - begin for begin, end in own[1:] if begin >= self.begin_s and end < self.end_s]
            parts["during"].append(inside)
            parts["after"].append([end - begin for begin, end in own if begin >= self.end_s])
        return parts


def means(seconds: Sequence[Sequence[float]]) -> list[float]:
    """Mean seconds of each worker's batches; NaN where it has none."""
    return [float(np.mean(own)) if own else float("nan") for own in seconds]
