"""A replayed job equals what is known by hand, and one synchrony another where both say the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from cdmpp.collectives.algorithms import parameter_server, ring, server_traffic_bytes
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import CdmppError
from cdmpp.steps.decisions import Decisions
from cdmpp.steps.synchrony import Synchrony
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


def test_a_batch_after_standing_still_is_shorter_and_no_other():
    """Four batches a commit: 4 x 0.1 s, of which the first is 0.03 s shorter, and 0.1 s for two copies."""
    worker = Worker(0.1, 8, link=AlphaBeta(0.0, 1e-8), rested_s=0.03)
    outcome = replay_job(Job((worker,), 5e6), synchrony_of("async:4"), seconds=47.0 + 0.03)  # nobody stood still before
    assert outcome.workers[0].commits == 100 and outcome.workers[0].batches == 400
    endless = replay_job(Job((worker,), 5e6), synchrony_of("async:1000000"), seconds=10.05)
    assert endless.workers[0].batches == 100
    spread = replay_job(Job((replace(worker, spread=0.5, rested_s=1.0),), 5e6), synchrony_of("async"), seconds=10.0)
    assert spread.workers[0].batches == pytest.approx(10.0 / 0.1, abs=1)  # none takes less than no time
    with pytest.raises(CdmppError, match="worker.rested_s is -1"):
        replace(worker, rested_s=-1.0)


def test_one_worker_and_one_server_take_a_batch_and_two_copies():
    job = Job((Worker(0.1, 8, link=AlphaBeta(0.0, 1e-8)),), 5e6)
    outcome = replay_job(job, synchrony_of("bsp"), commits=100)
    assert outcome.seconds == pytest.approx(100 * 0.1 + 199 * 0.05)  # the last commit is not pulled
    assert outcome.communication_share == pytest.approx(199 * 0.05 / outcome.seconds)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ssp:-1", "ssp.slack is -1: expected a whole number from 0"),
        ("ssp:x", "ssp.slack is 'x': expected a whole number"),
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


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_as_many_servers_as_ranks_send_what_a_ring_sends(ranks):
    """2 (N - 1) / N of the parameters leave each machine in a round, and a round takes that long: as of a ring."""
    n_bytes, rounds, beta_s = 24_000_000, 50, 1e-8
    workers = tuple(Worker(0.1, 8, link=AlphaBeta(0.0, beta_s)) for _ in range(ranks))
    job = Job(workers, n_bytes).on_workers(ranks)
    exchange_s = ring(Collective("all_reduce", n_bytes, ranks), AlphaBeta(0.0, beta_s))
    outcome = replay_job(job, synchrony_of("bsp"), seconds=rounds * (0.1 + exchange_s) + 1e-6)
    sent = {own.sent_bytes + server.sent_bytes for own, server in zip(outcome.workers, outcome.servers, strict=True)}
    assert [one.batches for one in outcome.workers] == [rounds] * ranks
    assert [each / rounds for each in sent] == [pytest.approx(server_traffic_bytes(n_bytes, ranks, ranks))]
    assert server_traffic_bytes(n_bytes, ranks, ranks) == pytest.approx(2 * (ranks - 1) / ranks * n_bytes)


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (4, 1), (4, 2), (3, 5)])
def test_bsp_takes_a_batch_and_the_closed_form_of_parameter_servers(workers, servers):
    link, collective = AlphaBeta(1e-3, 1e-8), Collective("all_reduce", 24_000_000, workers)
    each = tuple(Worker(0.1, 8, link=link) for _ in range(workers))
    round_s = 0.1 + parameter_server(collective, servers, link, colocated=False)
    job = Job(each, collective.bytes, (Server(AlphaBeta(0.0, link.beta_s)),) * servers)
    for seconds, batches in ((20 * round_s + 0.1 - 1e-6, 20), (20 * round_s + 0.1 + 1e-6, 21)):
        outcome = replay_job(job, synchrony_of("bsp"), seconds=seconds)
        assert [one.batches for one in outcome.workers] == [batches] * workers


def test_a_medium_carries_one_transfer_at_full_rate_or_all_at_a_part():
    job = Job((Worker(0.1, 1), Worker(0.1, 1)), 1e6, medium=AlphaBeta(0.0, 1e-7))
    outcome = replay_job(job, synchrony_of("bsp"), seconds=50.0 + 1e-6)
    # both push and both pull: 4 transfers of 0.1 s a round of 0.5 s
    assert [one.batches for one in outcome.workers] == [100, 100]
    assert outcome.workers[0].communication_s == pytest.approx(40.0)
    assert outcome.limit == "medium"


def test_a_worker_that_starts_late_begins_its_batches_then():
    outcome = replay_job(Job((Worker(1.0, 1), Worker(1.0, 1, start_s=4.5)), 1e6), synchrony_of("async"), seconds=10)
    assert [one.batches for one in outcome.workers] == [10, 5]


def test_overlap_hides_what_is_shorter_than_a_batch():
    job = Job((Worker(0.1, 1, link=AlphaBeta(0.0, 1e-8)),), 4e6, overlap=True)  # 0.04 s each way
    assert replay_job(job, synchrony_of("async"), seconds=10.05).workers[0].batches == 100
    slow = replace(job, bytes=8e6)  # 0.16 s both ways: a batch in that time
    found = replay_job(slow, synchrony_of("async"), seconds=100.0).workers[0]
    assert found.commits / 100.0 == pytest.approx(1 / 0.16, rel=0.01)
    assert found.communication_s / 100.0 == pytest.approx(0.06 / 0.16, rel=0.01)


@pytest.mark.parametrize(
    ("servers", "limit"),
    [
        ((Server(AlphaBeta(0.0, 2e-7)),), "server link"),
        ((Server(add_bytes_per_s=1e7),), "server's adding"),
        ((Server(),), "compute"),
    ],
)
def test_the_limit_is_named(servers, limit):
    workers = tuple(Worker(0.2, 8, spread=0.1) for _ in range(4))
    assert replay_job(Job(workers, 1e6, servers), synchrony_of("async"), seconds=60).limit == limit


def test_the_queue_of_a_server_that_adds_all_the_time():
    """Three workers of no batches to speak of and a server of 1 s a commit: one is added and two wait."""
    job = Job(tuple(Worker(1e-3, 1) for _ in range(3)), 1e6, (Server(add_bytes_per_s=1e6),))
    server = replay_job(job, synchrony_of("async"), seconds=200).servers[0]
    assert server.busy_s == pytest.approx(200, rel=0.01)
    assert server.queue == pytest.approx(3, rel=0.01)


def test_shares_divide_the_parameters():
    job = Job((Worker(0.1, 1),), 1e6, (Server(share=3.0), Server(share=1.0)))
    outcome = replay_job(job, synchrony_of("async"), commits=10)
    assert [one.received_bytes for one in outcome.servers] == [7.5e6, 2.5e6]


def test_the_spread_is_drawn_by_the_seed():
    job = Job(tuple(Worker(0.1, 1, spread=0.2) for _ in range(2)), 1e6)
    first, same, other = (replay_job(job, synchrony_of("async"), seconds=500, seed=seed) for seed in (1, 1, 2))
    assert first == same != other
    assert first.workers[0].batches == pytest.approx(5000, rel=0.02)


@dataclass(frozen=True)
class Deaf(Synchrony):
    name = "deaf"
    title = "nobody is ever released"

    def decisions(self, workers):
        class Never(Decisions):
            def applied(self, worker, now_s):
                return ()

        return Never(workers)


def test_a_synchrony_that_releases_nobody_is_said():
    with pytest.raises(CdmppError, match="the job stands still after 2 commits: its synchrony lets no worker go on"):
        replay_job(Job((Worker(1.0, 1), Worker(1.0, 1)), 1e6), Deaf(), seconds=30)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Worker(0.0, 1), "worker.batch_s is 0.0: expected a number above 0"),
        (lambda: Worker(float("inf"), 1), "worker.batch_s is inf"),
        (lambda: Worker(1.0, 1, link=AlphaBeta(0.0, float("inf"))), "worker.link.beta_s is inf: .* carries nothing"),
        (
            lambda: Worker(1.0, 1, interval_s=(2.0, 3.0)),
            "expected two numbers above 0 that enclose worker.batch_s, 1.0",
        ),
        (lambda: Server(AlphaBeta(-1.0, 0.0)), "server.link.alpha_s is -1.0"),
        (lambda: Server(add_bytes_per_s=0.0), "server.add_bytes_per_s is 0.0: expected a number above 0"),
        (lambda: Job((), 1e6), "job.workers is empty"),
        (lambda: Job((Worker(1.0, 1),), 1e6, ()), "job.servers is empty"),
        (lambda: Job((Worker(1.0, 1),), 0.0), "job.bytes is 0.0"),
        (lambda: Job((Worker(1.0, 1),), 1e6, (Server(on=1),)), "server 0 is on worker 1, and there are 1 workers"),
        (
            lambda: Job((Worker(1.0, 1),), 1e6).on_workers(2),
            "2 servers on the machines of 1 workers: expected from 1 to 1",
        ),
        (lambda: Job((Worker(1.0, 1),), 1e6, medium=AlphaBeta(0.0, float("nan"))), "job.medium.beta_s is nan"),
        (lambda: replay_job(Job((Worker(1.0, 1),), 1e6), synchrony_of("bsp")), "neither seconds nor commits are given"),
    ],
)
def test_a_wrong_job_is_refused(make, told):
    with pytest.raises(CdmppError, match=told):
        make()
