"""What each synchrony decides, event by event, and what a replay of it gives, by hand."""

from __future__ import annotations

import pytest

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.errors import UsageError
from cdmpp.steps.decisions import Next
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.policies import SYNCHRONIES, synchrony_of
from cdmpp.synchrony.policies.adacomm import AdaComm
from cdmpp.synchrony.policies.adsp import ADSP, implicit_momentum
from cdmpp.synchrony.policies.backup_workers import BackupWorkers
from cdmpp.synchrony.policies.local_sgd import DiLoCo, LocalSGD
from cdmpp.synchrony.policies.stale_synchronous import StaleSynchronous
from cdmpp.synchrony.replay import replay_job
from cdmpp.synchrony.worker import Server, Worker


def commit(decisions, worker, now_s=0.0):
    """One commit of a worker: its weight, and who may pull then."""
    return decisions.weight(worker, now_s), list(decisions.applied(worker, now_s))


def test_ssp_lets_the_fast_one_ahead_by_its_slack_and_the_slow_one_frees_it():
    decisions = StaleSynchronous(slack=2).decisions(2)
    assert [commit(decisions, 0) for _ in range(3)] == [(1.0, [0]), (1.0, [0]), (1.0, [])]
    assert commit(decisions, 1) == (1.0, [0, 1])
    assert not decisions.gathering


def test_local_sgd_averages_after_so_many_batches():
    decisions = DiLoCo(every=3, outer_rate=0.5).decisions(2)
    assert [decisions.after_batch(0, 0.0) for _ in range(4)] == [Next.TRAIN, Next.TRAIN, Next.COMMIT, Next.TRAIN]
    assert (decisions.momentum, decisions.nesterov) == (0.9, True)
    assert commit(decisions, 0) == (0.25, []) and decisions.gathering
    assert commit(decisions, 1) == (0.25, [0, 1]) and not decisions.gathering


def test_a_backup_worker_is_dropped_and_joins_the_next_round():
    decisions = BackupWorkers(1).decisions(3)
    assert commit(decisions, 0) == (0.5, [])
    assert commit(decisions, 1) == (0.5, [0, 1])
    assert commit(decisions, 0) == (0.5, []) and decisions.gathering
    assert commit(decisions, 2) == (0.0, [2]) and decisions.gathering  # it was of the first round
    assert commit(decisions, 2) == (0.5, [0, 2]) and not decisions.gathering


def test_a_commit_beyond_those_needed_is_dropped_while_they_are_still_added():
    decisions = BackupWorkers(1).decisions(3)
    assert [decisions.weight(worker, 0.0) for worker in (0, 1, 2)] == [0.5, 0.5, 0.0]
    assert decisions.applied(2, 0.0) == ()
    assert decisions.applied(0, 0.0) == ()
    assert decisions.applied(1, 0.0) == [2, 0, 1]


def test_adacomm_takes_the_root_of_the_loss_or_the_half():
    decisions = AdaComm(every=16, check_s=5.0).decisions(1)
    found = []
    for now_s, loss in ((0.0, 4.0), (5.0, 1.0), (10.0, 1.1), (15.0, 0.04), (20.0, 0.04)):
        decisions.observe(loss, now_s)
        found.append(decisions.every)
    assert found == [16, 8, 4, 2, 1]  # 16 sqrt(1/4); ceil(8.4) is not below 8: half; ceil(1.6); ceil(1.6) is 2: half
    with pytest.raises(UsageError, match="the loss is -1.0 at 25 s: adacomm takes its root"):
        decisions.observe(-1.0, 25.0)


def test_adsp_commits_equally_often_by_the_clock():
    job = Job((Worker(1.0, 1), Worker(4.0, 1)), 1e6)
    outcome = replay_job(job, ADSP(commits_per_check=2, least_s=1.0), seconds=600)
    # the slow one ends a batch at 32 s, 64 s and so on: each commit waits for the end of a batch
    assert [one.commits for one in outcome.workers] == [20, 18]
    assert [one.batches for one in outcome.workers] == [600, 150]
    caught = replay_job(job, ADSP(commits_per_check=2, least_s=1.0, catch_up=True), seconds=600)
    assert abs(caught.workers[0].commits - caught.workers[1].commits) <= 1


def test_adsp_counts_what_the_last_commit_took_and_keeps_its_least_seconds():
    decisions = ADSP(commits_per_check=3, check_s=60.0, least_s=10.0).decisions(2)
    assert [decisions.after_batch(0, now_s) for now_s in (19.9, 20.0)] == [Next.TRAIN, Next.COMMIT]
    assert commit(decisions, 0, 25.0) == (0.5, [0])
    assert decisions.pulled(0, 28.0) == ()  # it took 8 s
    assert [decisions.after_batch(0, now_s) for now_s in (39.9, 40.0)] == [Next.TRAIN, Next.COMMIT]
    decisions.pulled(0, 58.0)  # it took 18 s: 2 s would be left
    assert [decisions.after_batch(0, now_s) for now_s in (67.9, 68.0)] == [Next.TRAIN, Next.COMMIT]


def test_the_implicit_momentum_of_equal_workers():
    assert implicit_momentum([1.0, 1.0]) == pytest.approx(0.5)  # k (workers - 1) is 1
    assert implicit_momentum([5.0]) == 0.0


def test_round_robin_gives_each_the_link_alone():
    """Two workers of 1 s a batch and transfers of 0.5 s: the second pushes when the first has pulled."""
    job = Job((Worker(1.0, 1), Worker(1.0, 1)), 1e6, (Server(AlphaBeta(0.0, 5e-7)),))
    outcome = replay_job(job, synchrony_of("r2sp"), seconds=30.0)
    # a turn is 1 s and a batch too: worker 0 trains 0-1 and turns 1-2, worker 1 turns 2-3, worker 0 trains 2-3 ...
    assert [one.waiting_s for one in outcome.workers] == pytest.approx([0.0, 1.0])
    assert [one.batches for one in outcome.workers] == [15, 15]
    assert replay_job(job, synchrony_of("async"), seconds=30.0).workers[0].waiting_s == 0.0


def test_adsp_that_commits_always_is_asynchronous():
    job = Job(tuple(Worker(0.1, 8, link=AlphaBeta(1e-4, 1e-8)) for _ in range(4)), 1e6)
    adsp = ADSP(commits_per_check=2**31, least_s=0.0)
    one, other = (replay_job(job, synchrony, seconds=60) for synchrony in (adsp, synchrony_of("async")))
    assert (one.workers, one.servers, one.limit) == (other.workers, other.servers, other.limit)


def test_backup_workers_do_not_wait_for_the_slow_one():
    job = Job((Worker(1.0, 1), Worker(1.0, 1), Worker(10.0, 1)), 1e6)
    outcome = replay_job(job, BackupWorkers(1), seconds=100.0)
    assert [one.commits for one in outcome.workers] == [100, 100, 0]
    assert outcome.workers[2].dropped == 10
    assert outcome.samples == 210


def test_the_search_of_adsp_sees_batches_before_anything_is_committed():
    """A candidate of one commit a period ends before its commit: only batches of the workers tell that the loss falls.

    So a real job sees it too, whose coordinator takes the mean loss of the batches since its last look.
    """
    job = Job((Worker(0.1, 1), Worker(0.2, 1)), 1e6)
    seen = []

    class Seeing(ADSP):
        def decisions(self, workers):
            made = super().decisions(workers)
            observe = made.observe
            made.observe = lambda loss, now_s: (seen.append((now_s, loss)), observe(loss, now_s))[1]
            return made

    searched = Seeing(target_loss=0.5, check_s=10.0, least_s=0.5)
    outcome = replay_job(job, searched, seconds=40.0, loss=lambda now: 1 / (0.01 * now.weighted_samples + 0.5))
    assert seen[0] == (0.0, 2.0)
    first, _ = zip(
        *[(1 / (0.01 * own + 0.5), worker) for worker, many in ((0, 50), (1, 25)) for own in range(many)], strict=True
    )
    assert seen[1] == (5.0, pytest.approx(sum(first) / len(first), rel=0.01))
    assert seen[2][1] < seen[1][1] < 2.0
    assert min(one.commits for one in outcome.workers) > 4  # one a period would be 3 or 4


def test_adacomm_commits_more_often_as_the_loss_of_the_replay_falls():
    job = Job((Worker(1.0, 1), Worker(1.0, 1)), 1e6)
    outcome = replay_job(
        job, AdaComm(every=8, check_s=40.0), seconds=80.0, loss=lambda now: 4.0 / (1 + now.weighted_samples)
    )
    # 8 batches a round until 40 s. Their mean loss is that of one worker's first 40, 4 x 4.28 / 40 = 0.107 of the
    # first: ceil(8 x sqrt(0.107)) is 3, so 5 rounds and 13.
    assert outcome.workers[0].commits == pytest.approx(5 + 13, abs=1)
    with pytest.raises(UsageError, match="synchrony adacomm decides by the loss: give a loss curve"):
        replay_job(job, AdaComm(), seconds=80.0)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: BackupWorkers(3).decisions(3), "backup.backups is 3 of 3 workers: expected fewer"),
        (lambda: ADSP(least_s=-1.0), "adsp.least_s is -1.0: expected a number from 0"),
        (lambda: ADSP(commits_per_check=0), "adsp.commits_per_check is 0"),
        (lambda: AdaComm(every=0), "adacomm.every is 0"),
        (lambda: LocalSGD(outer_momentum=1.0), "local.outer_momentum is 1.0"),
        (lambda: LocalSGD().awaited_step(3), "synchrony local decides while a job runs"),
    ],
)
def test_what_cannot_be_is_refused(make, told):
    with pytest.raises(UsageError, match=told):
        make()


def test_all_are_known_by_their_names():
    assert {kind.name for kind in SYNCHRONIES} == {
        "adacomm", "adsp", "async", "backup", "bsp", "diloco", "local", "r2sp", "ssp",
    }  # fmt: skip
