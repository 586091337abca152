"""TimeToLoss: when a job reaches a loss, from the curve of one worker and the progress of a replay.

The replay says what has moved the parameters by when. That the loss follows is an assumption, which is stated here and
in every answer: a commit brings the curve forward by its weight times its samples. It is the limit of small steps, in
which stochastic gradient descent follows the gradient flow and only the sum of its steps counts (Li, Tai and E,
"Stochastic modified equations and adaptive stochastic gradient algorithms", 2017). Staleness then acts as momentum of
the same mean step (Mitliagkas et al., "Asynchrony begets momentum", 2016), and changes nothing at first order.

Near the limit of the learning rate that is too good to be true: updates that began at the same parameters add up to one
step that is too long. Then ``penalty`` lets an update count ``1 / (1 + penalty x weight x staleness)`` of its samples.
With a penalty and weights of 1 a step counts as much as Zhang et al. ("Staleness-aware async-SGD for distributed deep
learning", 2016) let it count, who divide the learning rate by the staleness. In the analysis of Dutta et al. ("Slow and
stale gradients can win the race", 2018) staleness scales the progress of a step too, by a factor that they leave open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cdmpp.synchrony.loss.curve import LossCurve
from cdmpp.synchrony.outcome import JobOutcome

_SMALL_STEPS = (
    "times come from the replay; the loss is assumed to follow the curve of one worker by the sum of weighted steps "
    "(the limit of small steps): stale gradients, larger batches and a learning rate near its limit are not counted"
)
_PENALTY = (
    "times come from the replay; the loss is assumed to follow the curve of one worker by the sum of weighted steps, "
    "of which a stale one counts 1 / (1 + {:g} x weight x staleness): larger batches are not counted"
)


def assumption(penalty: float) -> str:
    """Return the sentence that says by what the loss follows the replay."""
    return _PENALTY.format(penalty) if penalty else _SMALL_STEPS


@dataclass(frozen=True)
class TimeToLoss:
    """A job reaches a loss after so long."""

    loss: float
    seconds: float
    interval_s: tuple[float, float]
    """90 % interval, from the scatter of the loss curve; its end is infinite where the floor may be above. ``compare``
    widens it by the interval of the batches."""
    weighted_samples: float
    """Samples of one worker that stand for what moved the parameters until then."""
    beyond_replay: float
    """Times by which it lies beyond the end of the replay, carried on at the mean rate to the last commit; at most 1:
    within it."""
    beyond_curve: float
    """The same of the last point of the loss curve."""


def time_to_loss(outcome: JobOutcome, curve: LossCurve, loss: float, seed: int = 0) -> TimeToLoss:
    """Say when a replayed job reaches a loss.

    ``UsageError`` where the loss is at or below the floor of the curve.
    """
    needed = curve.samples_to(loss)
    low, high = curve.samples_interval(loss, seed=seed)
    seconds = seconds_at(outcome, needed)
    interval_s = min(seconds_at(outcome, low), seconds), max(seconds_at(outcome, high), seconds)
    return TimeToLoss(loss, seconds, interval_s, needed, seconds / outcome.seconds, needed / curve.samples)


def seconds_at(outcome: JobOutcome, weighted_samples: float) -> float:
    """Compute when a job has moved the parameters by so many weighted samples; infinite where it never moves them."""
    seconds = [point.seconds for point in outcome.progress]
    moved = [point.weighted_samples for point in outcome.progress]
    if weighted_samples <= moved[-1]:
        return float(np.interp(weighted_samples, moved, seconds))
    if not moved[-1] or math.isinf(weighted_samples):
        return math.inf
    return seconds[-1] * weighted_samples / moved[-1]


def loss_by_time(outcome: JobOutcome, curve: LossCurve) -> tuple[tuple[float, float], ...]:
    """List seconds and loss at the points of a job's progress."""
    return tuple((point.seconds, curve.loss_at(point.weighted_samples)) for point in outcome.progress)
