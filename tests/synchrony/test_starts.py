"""When workers begin: at random moments, so that long jobs have the speed that theory gives them."""

from __future__ import annotations

import pytest

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.plans.provisioning.loop import ClosedLoop
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.policies import synchrony_of
from cdmpp.synchrony.replay import replay_job
from cdmpp.synchrony.starts import begun, cycle_s
from cdmpp.synchrony.worker import NO_LIMIT, Server, Worker

WIRE_S = 0.1


def job(workers: int, batch_s: float, spread: float = 0.0, **changes: object) -> Job:
    link = AlphaBeta(0.0, WIRE_S / 1e6)
    return Job((Worker(batch_s, 1, spread, link),) * workers, 1e6, (Server(link),), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("workers", "batch_s"), [(2, 0.1), (4, 0.2), (8, 1.0)])
@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_a_long_job_has_the_speed_of_a_closed_queueing_network(workers, batch_s, spread):
    """Links are shared evenly, so its throughput hangs on the means alone (Baskett, Chandy, Muntz, Palacios, 1975)."""
    loop = ClosedLoop(workers, batch_s, (WIRE_S, 0.0, WIRE_S), 2 * WIRE_S, False)
    found = replay_job(job(workers, batch_s, spread), synchrony_of("async"), commits=2000 * workers, seed=1)
    assert found.committed_per_s == pytest.approx(workers / loop.cycle_s, rel=0.04)


def test_without_a_spread_workers_keep_how_they_began():
    """The other limit: two that begin together share both ways for ever, two half a cycle apart never do."""
    together = replay_job(job(2, 0.2), synchrony_of("async"), seconds=300)
    assert together.samples_per_s == pytest.approx(2 / (0.2 + 4 * WIRE_S), rel=0.01)
    link = AlphaBeta(0.0, WIRE_S / 1e6)
    apart = Job((Worker(0.2, 1, link=link), Worker(0.2, 1, link=link, start_s=0.2)), 1e6, (Server(link),))
    assert replay_job(apart, synchrony_of("async"), seconds=300).samples_per_s == pytest.approx(2 / 0.4, rel=0.01)


def test_the_mean_over_random_moments_is_between_both():
    free = synchrony_of("async")
    rates = [replay_job(begun(job(2, 0.2), free, seed), free, seconds=30).samples_per_s for seed in range(30)]
    assert 2 / 0.6 * 0.99 < min(rates) < max(rates) < 2 / 0.4 * 1.01
    loop = ClosedLoop(2, 0.2, (WIRE_S, 0.0, WIRE_S), 2 * WIRE_S, False)
    assert sum(rates) / len(rates) == pytest.approx(2 / loop.cycle_s, rel=0.05)


def test_who_begins_when():
    one = begun(job(3, 0.2), synchrony_of("ssp:4"), 0)
    starts = [worker.start_s for worker in one.workers]
    assert len(set(starts)) == 3 and all(0 <= start < 0.2 + 2 * WIRE_S for start in starts)
    assert begun(job(3, 0.2), synchrony_of("ssp:4"), 0) == one != begun(job(3, 0.2), synchrony_of("ssp:4"), 1)
    for rounds in ("bsp", "local:4", "diloco", "backup:1"):
        assert begun(job(3, 0.2), synchrony_of(rounds), 0) == job(3, 0.2)
    late = Job((Worker(0.2, 1, start_s=3.0), Worker(0.2, 1)), 1e6)
    assert begun(late, synchrony_of("async"), 0) == late


def test_a_cycle_is_a_batch_and_what_the_tightest_link_takes_both_ways():
    narrow = AlphaBeta(0.01, 1e-7)
    servers = (Server(NO_LIMIT, 1e7), Server(NO_LIMIT, 1e7))
    assert cycle_s(Job((Worker(0.5, 1, link=narrow),), 1e6, servers), 0) == pytest.approx(0.5 + 2 * 0.1 + 0.02 + 0.05)
    at_home = Job((Worker(0.5, 1, link=narrow),), 1e6, (Server(on=0),))
    assert cycle_s(at_home, 0) == pytest.approx(0.5)
    assert cycle_s(Job((Worker(0.5, 1),), 1e6), 0) == pytest.approx(0.5)
