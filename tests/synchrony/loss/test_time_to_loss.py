"""Time to a loss: the rule of weighted steps gives what can be computed by hand."""

import math

import pytest

from cdmpp.errors import UsageError
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.loss.curve import LossCurve
from cdmpp.synchrony.loss.time_to_loss import loss_by_time, seconds_at, time_to_loss
from cdmpp.synchrony.policies.asynchronous import Asynchronous
from cdmpp.synchrony.policies.local_sgd import LocalSGD
from cdmpp.synchrony.policies.synchronous import Synchronous
from cdmpp.synchrony.replay import replay_job
from cdmpp.synchrony.worker import Worker

CURVE = LossCurve(0.01, 0.5, 0.1)
FOUR = Job((Worker(0.1, 8),) * 4, bytes=1e6)


def test_one_worker_follows_its_own_curve():
    outcome = replay_job(Job((Worker(0.1, 8),), bytes=1e6), Synchronous(), seconds=60)
    needed = CURVE.samples_to(0.6)
    assert time_to_loss(outcome, CURVE, 0.6).seconds == pytest.approx(0.1 * needed / 8, rel=1e-6)


def test_four_workers_average_to_the_steps_of_one_and_add_up_without_averages():
    needed = CURVE.samples_to(0.6)
    alone_s = 0.1 * needed / 8
    found = {
        kind: time_to_loss(replay_job(FOUR, kind(), seconds=60), CURVE, 0.6) for kind in (Synchronous, Asynchronous)
    }
    assert found[Synchronous].seconds == pytest.approx(alone_s, rel=0.05)
    assert found[Asynchronous].seconds == pytest.approx(alone_s / 4, rel=0.05)


def test_momentum_of_the_servers_lengthens_steps():
    """The servers move by the velocity: 1, 1.5, 1.75 and so on of a round's update, looking ahead by one more round."""
    ways = {}
    for name, more in {"plain": {}, "heavy": {"outer_momentum": 0.5}}.items():
        ways[name] = replay_job(FOUR, LocalSGD(every=2, **more), seconds=20).progress
    ways["ahead"] = replay_job(FOUR, LocalSGD(every=2, outer_momentum=0.5, nesterov=True), seconds=20).progress
    rounds = {name: [point.weighted_samples / 16 for point in points[4::4]] for name, points in ways.items()}
    assert rounds["plain"][:3] == pytest.approx([1, 2, 3])
    assert rounds["heavy"][:3] == pytest.approx([1, 2.5, 4.25])
    assert rounds["ahead"][:3] == pytest.approx([1.5, 3.25, 5.125])
    assert rounds["heavy"][-1] == pytest.approx(2 * rounds["plain"][-1], rel=0.02)  # in the long run


def test_stale_updates_count_less_with_a_penalty():
    free = replay_job(FOUR, Asynchronous(), seconds=10)
    held = replay_job(FOUR, Asynchronous(), seconds=10, staleness_penalty=0.5)
    stale = {k: n for worker in free.workers for k, n in worker.staleness.items()}
    assert max(stale) > 0 and held.progress[-1].samples == free.progress[-1].samples
    counts = [(k, n) for worker in free.workers for k, n in worker.staleness.items()]
    expected = sum(8 * n / (1 + 0.5 * k) for k, n in counts)
    assert held.progress[-1].weighted_samples == pytest.approx(expected)


def test_beyond_the_replay_the_mean_rate_goes_on():
    outcome = replay_job(FOUR, Synchronous(), seconds=10)
    last = outcome.progress[-1].weighted_samples
    assert seconds_at(outcome, 3 * last) == pytest.approx(30)
    assert seconds_at(outcome, math.inf) == math.inf
    assert time_to_loss(outcome, CURVE, 0.11).beyond_replay > 1


def test_the_floor_is_never_reached():
    with pytest.raises(UsageError, match="never reached"):
        time_to_loss(replay_job(FOUR, Synchronous(), seconds=10), CURVE, 0.1)


def test_loss_falls_with_time():
    losses = [loss for _, loss in loss_by_time(replay_job(FOUR, Asynchronous(), seconds=10), CURVE)]
    assert losses == sorted(losses, reverse=True) and losses[0] == CURVE.loss_at(0)


def test_after_the_last_commit_the_rate_until_it_goes_on():
    outcome = replay_job(Job((Worker(250.0, 1),), bytes=1e6), Synchronous(), seconds=600)
    assert seconds_at(outcome, 2) == pytest.approx(500)
    assert seconds_at(outcome, 3) == pytest.approx(750)
