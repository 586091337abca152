"""A replayed job equals what is known by hand, and one synchrony another where both say the same."""

from __future__ import annotations

import pytest

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import CdmppError
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.policies import synchrony_of
from cdmpp.synchrony.replay import replay_job
from cdmpp.synchrony.worker import Server, Worker

LINK = AlphaBeta(1e-4, 1e-8)


def uneven(**settings):
    workers = tuple(Worker(batch_s, 32, link=LINK, spread=0.1) for batch_s in (0.1, 0.1, 0.2, 0.4))
    return Job(workers, 1e6, (Server(AlphaBeta(0.0, 2e-9), 1e9),), **settings)


def times(outcome):
    """All of an outcome but staleness, which averaged updates do not have."""
    return [(one.batches, one.commits, one.waiting_s, one.communication_s) for one in outcome.workers]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("first", "second"), [("ssp:0", "bsp"), ("ssp:1000000", "async"), ("local:1", "bsp")], ids="{}".format
)
def test_two_synchronies_are_one(first, second, overlap):
    job = uneven(overlap=overlap)
    one, other = (replay_job(job, synchrony_of(name), seconds=60, seed=1) for name in (first, second))
    assert times(one) == times(other)


def test_bsp_goes_as_fast_as_the_slowest():
    job = Job((Worker(0.1, 32), Worker(0.25, 32)), 1e6)
    outcome = replay_job(job, synchrony_of("bsp"), seconds=100)
    assert [one.batches for one in outcome.workers] == [400, 400]
    assert outcome.workers[0].waiting_s == pytest.approx(60)
    assert outcome.limit == "slowest worker"


def test_asynchronous_workers_go_as_fast_as_they_can():
    job = Job((Worker(0.125, 32), Worker(0.25, 16)), 1e6)
    outcome = replay_job(job, synchrony_of("async"), seconds=100)
    assert [one.batches for one in outcome.workers] == [800, 400]
    assert outcome.samples_per_s == 320
    assert outcome.limit == "compute"


def test_one_worker_and_one_server_take_a_batch_and_two_copies():
    job = Job((Worker(0.1, 8, link=AlphaBeta(0.0, 1e-8)),), 5e6)
    outcome = replay_job(job, synchrony_of("bsp"), commits=100)
    assert outcome.seconds == pytest.approx(100 * 0.1 + 199 * 0.05)  # the last commit is not pulled
    assert outcome.communication_share == pytest.approx(199 * 0.05 / outcome.seconds)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ssp:-1", "ssp.slack is -1: expected a whole number from 0"),
        ("ssp:x", "ssp.slack is 'x': expected a number"),
        ("bsp:2", "bsp has no settings"),
        ("spp", "unknown synchrony 'spp'; nearest: "),
    ],
)
def test_a_wrong_synchrony_is_refused(text, told):
    with pytest.raises(CdmppError, match=told):
        synchrony_of(text)


def test_a_worker_that_ends_no_batch_is_refused():
    with pytest.raises(CdmppError, match="worker 1 ends no batch: one takes it 50 s and the job runs for 30 s"):
        replay_job(Job((Worker(1.0, 1), Worker(50.0, 1)), 1e6), synchrony_of("async"), seconds=30)
