"""Comparison: one job under several synchronies, how fast each is and when it reaches a loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cdmpp.errors import UsageError
from cdmpp.steps.synchrony import Synchrony
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.loss.curve import LossCurve
from cdmpp.synchrony.loss.time_to_loss import TimeToLoss, time_to_loss
from cdmpp.synchrony.outcome import JobOutcome
from cdmpp.synchrony.progress import Progress
from cdmpp.synchrony.replay import replay_job
from cdmpp.synchrony.worker import Worker


@dataclass(frozen=True)
class JudgedSynchrony:
    """A job under one synchrony."""

    text: str
    """As it was asked for, such as ``ssp:4``."""
    synchrony: Synchrony
    outcome: JobOutcome
    interval_per_s: tuple[float, float]
    """Samples a second with all workers at the slow end of their batches' intervals, and at the fast end."""
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
    target_loss: float | None = None,
) -> Comparison:  # fmt: skip
    """Replay a job under each synchrony.

    Args:
        job: workers, servers and links.
        asked: text and synchrony.
        seconds: of each replay.
        seed: of the seconds of batches, and of the draws of intervals.
        curve: the loss of one worker.
        target_loss: the time to it is asked for.

    Raises:
        UsageError: a target without a curve, at or below its floor, and as of ``replay_job``.
    """
    if target_loss is not None and curve is None:
        raise UsageError(f"a target loss of {target_loss:g} needs a loss curve: nothing else says how the loss falls")
    if curve is not None and target_loss is not None:
        curve.samples_to(target_loss)
    return Comparison(job, seconds, seed, curve, tuple(_judged(job, asked, seconds, seed, curve, target_loss)))


def _judged(
    job: Job, asked: Sequence[tuple[str, Synchrony]], seconds: float, seed: int, curve: LossCurve | None,
    target_loss: float | None,
) -> Iterator[JudgedSynchrony]:  # fmt: skip
    def loss(now: Progress) -> float:
        assert curve is not None
        return curve.loss_at(now.weighted_samples)

    for text, synchrony in asked:
        found = [
            replay_job(_at(job, end), synchrony, seconds, seed=seed, loss=None if curve is None else loss)
            for end in (None, 1, 0)
            if end is None or any(worker.interval_s for worker in job.workers)
        ]
        outcome, *ends = found
        rates = [one.samples_per_s for one in found]
        to_loss = None
        if curve is not None and target_loss is not None:
            to_loss = time_to_loss(outcome, curve, target_loss, seed)
            reached = [time_to_loss(end, curve, target_loss, seed).interval_s for end in ends]
            low, high = zip(to_loss.interval_s, *reached, strict=True)
            to_loss = replace(to_loss, interval_s=(min(low), max(high)))
        yield JudgedSynchrony(text, synchrony, outcome, (min(rates), max(rates)), to_loss)


def _at(job: Job, end: int | None) -> Job:
    """The job with all batches at one end of their intervals, 0 the fast one."""
    if end is None:
        return job
    return replace(job, workers=tuple(_at_end(worker, end) for worker in job.workers))


def _at_end(worker: Worker, end: int) -> Worker:
    if worker.interval_s is None:
        return worker
    return replace(worker, batch_s=worker.interval_s[end], interval_s=None)
