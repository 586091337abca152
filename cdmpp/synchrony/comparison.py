"""Comparison: one job under several synchronies, how fast each is and when it reaches a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import stdev

from cdmpp.errors import UsageError
from cdmpp.platform.progress import shown
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.loss.curve import LossCurve
from cdmpp.synchrony.loss.time_to_loss import TimeToLoss, time_to_loss
from cdmpp.synchrony.outcome import JobOutcome
from cdmpp.synchrony.progress import Progress
from cdmpp.synchrony.replay import replay_job
from cdmpp.synchrony.starts import begun
from cdmpp.synchrony.worker import Worker

DRAWS = 3
"""Replays of a job in which batches vary or workers begin by chance; the middle one is shown."""
_T = 1.886
"""Quantile of Student's distribution with two degrees of freedom, so that 8 of 10 further jobs lie within."""


@dataclass(frozen=True)
class JudgedSynchrony:
    """A job under one synchrony."""

    text: str
    """As it was asked for, such as ``ssp:4``."""
    synchrony: Synchrony
    outcome: JobOutcome
    """The replay of the middle speed."""
    interval_per_s: tuple[float, float]
    """8 of 10 jobs train so many samples a second, as far as the intervals of predicted batches, the spread of batches
    and the moments at which workers begin tell; both ends are the same where nothing of it is there."""
    to_loss: TimeToLoss | None = None
    """None: no loss was asked for."""


@dataclass(frozen=True)
class Comparison:
    """All synchronies that were asked for, in their order."""

    job: Job
    seconds: float
    seed: int
    curve: LossCurve | None
    judged: tuple[JudgedSynchrony, ...]
    staleness_penalty: float = 0.0
    """How much stale updates count less; as of ``replay_job``."""

    @property
    def best(self) -> JudgedSynchrony:
        """The first that reaches the loss soonest, or commits most samples a second where no loss was asked for."""
        return min(self.judged, key=lambda one: one.to_loss.seconds if one.to_loss else -one.outcome.committed_per_s)

    def named(self, text: str) -> JudgedSynchrony:
        """Return the one of a text; ``UsageError`` names those that there are."""
        for one in self.judged:
            if one.text == text:
                return one
        raise UsageError(
            f"{text!r} is not among the policies that were compared: {', '.join(one.text for one in self.judged)}"
        )


def compare(
    job: Job, asked: Sequence[tuple[str, Synchrony]], seconds: float, seed: int = 0, curve: LossCurve | None = None,
    target_loss: float | None = None, staleness_penalty: float = 0.0, progress: bool = False,
) -> Comparison:  # fmt: skip
    """Replay a job under each synchrony.

    Args:
        job: workers, servers and links.
        asked: text and synchrony.
        seconds: of each replay.
        seed: of the seconds of batches, of the moments at which workers begin, and of the draws of intervals.
        curve: the loss of one worker.
        target_loss: the time to it is asked for.
        staleness_penalty: as of ``replay_job``.
        progress: whether a bar is shown on standard error.

    Raises:
        UsageError: a target without a curve, at or below its floor, and as of ``replay_job``.
    """
    if target_loss is not None and curve is None:
        raise UsageError(f"a target loss of {target_loss:g} needs a loss curve: nothing else says how the loss falls")
    if curve is not None and target_loss is not None:
        curve.samples_to(target_loss)
    judged = (
        _judged(text, _Replays(job, synchrony, seconds, seed, curve, staleness_penalty), target_loss)
        for text, synchrony in asked
    )
    found = tuple(shown(judged, "replays of synchronies", len(asked), progress))
    return Comparison(job, seconds, seed, curve, found, staleness_penalty)


@dataclass(frozen=True)
class _Replays:
    """Replays of one job under one synchrony."""

    job: Job
    synchrony: Synchrony
    seconds: float
    seed: int
    curve: LossCurve | None
    penalty: float

    def at(self, job: Job, seed: int) -> JobOutcome:
        """Replay the job, or the same with other batches."""
        return replay_job(
            begun(job, self.synchrony, seed), self.synchrony, self.seconds, seed=seed,
            loss=None if self.curve is None else self._loss, staleness_penalty=self.penalty,
        )  # fmt: skip

    def _loss(self, now: Progress) -> float:
        assert self.curve is not None
        return self.curve.loss_at(now.weighted_samples)

    @property
    def draws(self) -> list[tuple[int, JobOutcome]]:
        """Return seeds and outcomes, the slowest first; one where nothing is left to chance."""
        first = self.seed, self.at(self.job, self.seed)
        has_rounds = self.synchrony.decisions(len(self.job.workers)).has_rounds
        if not any(one.spread for one in self.job.workers) and (has_rounds or not self.job.rates):
            return [first]
        more = [(seed, self.at(self.job, seed)) for seed in range(self.seed + 1, self.seed + DRAWS)]
        return sorted([first, *more], key=lambda one: one[1].samples_per_s)

    def ends(self, seed: int) -> list[JobOutcome]:
        """Return the outcomes with all batches at the slow and at the fast end of their intervals; none without."""
        if not any(worker.interval_s for worker in self.job.workers):
            return []
        return [self.at(_at(self.job, end), seed) for end in (1, 0)]


def _judged(text: str, replays: _Replays, target_loss: float | None) -> JudgedSynchrony:
    draws = replays.draws
    seed, outcome = draws[len(draws) // 2]
    ends = replays.ends(seed)
    rates = [one.samples_per_s for _, one in draws]
    around = _T * stdev(rates) * math.sqrt(1 + 1 / len(rates)) if len(rates) > 1 else 0.0
    sides = [outcome.samples_per_s - around, outcome.samples_per_s + around, *(one.samples_per_s for one in ends)]
    to_loss = None
    if replays.curve is not None and target_loss is not None:
        to_loss = time_to_loss(outcome, replays.curve, target_loss, replays.seed)
        others = [*ends, *(one for _, one in draws)]
        reached = [time_to_loss(one, replays.curve, target_loss, replays.seed).interval_s for one in others]
        lows, highs = zip(to_loss.interval_s, *reached, strict=True)
        to_loss = replace(to_loss, interval_s=(min(lows), max(highs)))
    return JudgedSynchrony(text, replays.synchrony, outcome, (max(0.0, min(sides)), max(sides)), to_loss)


def _at(job: Job, end: int) -> Job:
    """The job with all batches at one end of their intervals, 0 the fast one."""
    return replace(job, workers=tuple(_at_end(worker, end) for worker in job.workers))


def _at_end(worker: Worker, end: int) -> Worker:
    if worker.interval_s is None:
        return worker
    return replace(worker, batch_s=worker.interval_s[end], interval_s=None)
