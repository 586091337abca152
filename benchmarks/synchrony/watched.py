"""Replays whose commits are watched: when each worker commits how many batches, with which weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cdmpp.steps.decisions import Decisions, Next
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.outcome import JobOutcome
from cdmpp.synchrony.progress import Progress
from cdmpp.synchrony.replay import replay_job

REPLAYS = 8
"""Seeds of a replay, whose batches vary as measured ones do; their mean is the prediction."""


class Watched(Synchrony):
    """Another synchrony, whose commits are kept: (seconds, batches, weight) by worker."""

    name = "watched"
    title = "another one, with an eye on it"

    def __init__(self, inner: Synchrony) -> None:
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "commits", [])

    def decisions(self, workers: int) -> Decisions:
        inner: Any = self.inner.decisions(workers)  # type: ignore[attr-defined]
        commits: list[list[tuple[float, int, float]]] = self.commits  # type: ignore[attr-defined]
        commits[:] = [[] for _ in range(workers)]
        batches, weights = [0] * workers, [0.0] * workers
        after_batch, weight, applied = inner.after_batch, inner.weight, inner.applied

        def count(worker: int, now_s: float) -> Next:
            batches[worker] += 1
            return after_batch(worker, now_s)

        def weigh(worker: int, now_s: float) -> float:
            weights[worker] = weight(worker, now_s)
            return weights[worker]

        def keep(worker: int, now_s: float) -> Sequence[int]:
            commits[worker].append((now_s, batches[worker], weights[worker]))
            batches[worker] = 0
            return applied(worker, now_s)

        inner.after_batch, inner.weight, inner.applied = count, weigh, keep
        return inner


@dataclass(frozen=True)
class Replayed:
    """One replay: its outcome and all commits of each worker."""

    outcome: JobOutcome
    commits: Sequence[Sequence[tuple[float, int, float]]]


def replays(
    job: Job, synchrony: Synchrony, seconds: float, seeds: int = REPLAYS,
    loss: Callable[[Progress], float] | None = None, is_apart: bool = False, staleness_penalty: float = 0.0,
) -> list[Replayed]:  # fmt: skip
    """Replay a job with several seeds.

    ``is_apart``: each worker begins at a random moment of its first batch, as one that trained before; else together.
    """
    found = []
    for seed in range(seeds):
        watched = Watched(synchrony)
        begun = _apart(job, seed) if is_apart else job
        outcome = replay_job(begun, watched, seconds, seed=seed, loss=loss, staleness_penalty=staleness_penalty)
        found.append(Replayed(outcome, [list(own) for own in watched.commits]))  # type: ignore[attr-defined]
    return found


def _apart(job: Job, seed: int) -> Job:
    parts = np.random.default_rng(seed).random(len(job.workers))
    workers = zip(job.workers, parts, strict=True)
    return replace(job, workers=tuple(replace(one, start_s=float(part) * one.batch_s) for one, part in workers))
