"""Every kind of synchronisation drives real processes as it drives a replay."""

from __future__ import annotations

from cdmpp.synchrony import run
from cdmpp.synchrony.policies import SYNCHRONIES, synchrony_of
from cdmpp.synchrony.policies.adacomm import AdaComm
from cdmpp.synchrony.policies.adsp import ADSP
from cdmpp.synchrony.policies.local_sgd import DiLoCo
from cdmpp.synchrony.processes.place import WorkerPlace
from tests.synchrony.processes import toy_training as toy

THREE = [WorkerPlace()] * 3


def test_turns_go_round():
    record = run(toy.uneven, synchrony_of("r2sp"), THREE, seconds=1.0)
    added = sorted((one.at_s, number) for number, worker in enumerate(record.workers) for one in worker.commits)
    assert len(added) > 6
    assert [number for _, number in added] == [number % 3 for number in range(len(added))]


def test_commits_that_come_too_late_are_dropped():
    record = run(toy.uneven, synchrony_of("backup:1"), THREE, seconds=1.5)
    fast, _, slow = (one.share for one in record.workers)
    assert slow.dropped > slow.commits and fast.dropped < fast.commits
    weights = {one.weight for worker in record.workers for one in worker.commits}
    assert weights == {0.0, 0.5}


def test_averages_become_frequent_as_the_loss_falls():
    record = run(toy.train, AdaComm(every=8, check_s=0.4), THREE, seconds=2.0)
    batches = [one.batches for one in record.workers[0].commits]
    assert batches[0] == 8 and batches[-1] < 4


def test_uneven_workers_commit_equally_often():
    record = run(toy.uneven, ADSP(commits_per_check=4, check_s=1.0, least_s=0.0), THREE, seconds=2.0)
    commits = [one.share.commits for one in record.workers]
    assert max(commits) - min(commits) <= 1 and 6 <= max(commits) <= 8
    batches = [one.share.batches for one in record.workers]
    assert batches[0] > 2 * batches[2]
    assert max(one.share.waiting_s for one in record.workers) < 0.2


def test_commits_are_searched_by_the_measured_loss():
    record = run(toy.uneven, ADSP(check_s=0.3, least_s=0.0, target_loss=0.1), THREE, seconds=2.5)
    first, last = (record.losses[number].held_out_loss for number in (0, -1))
    assert first == 5.0 and last < 1.0
    assert min(one.share.commits for one in record.workers) > 5


def test_outer_momentum_moves_all_workers():
    record = run(toy.train, DiLoCo(every=5), THREE, seconds=1.0)
    assert {one.batches for worker in record.workers for one in worker.commits} == {5}
    assert {kind.name for kind in SYNCHRONIES} == {
        "bsp", "ssp", "async", "local", "diloco", "backup", "adacomm", "adsp", "r2sp",
    }  # fmt: skip
