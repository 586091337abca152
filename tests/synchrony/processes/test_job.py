"""Real jobs of a few processes: what they train, count and refuse."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
from functools import partial

import pytest
import torch

from cdmpp.errors import CdmppError, UsageError
from cdmpp.synchrony import run
from cdmpp.synchrony.policies import synchrony_of
from cdmpp.synchrony.processes.crew import Crew
from cdmpp.synchrony.processes.place import ServerPlace, WorkerPlace
from cdmpp.synchrony.processes.record import load_record
from cdmpp.synchrony.processes.worker import work
from tests.disturbed import best_of
from tests.synchrony.processes import toy_training as toy

ANY = WorkerPlace()


@best_of(3)
def test_rounds_of_two_workers_and_two_servers_train_as_one_device(tmp_path):
    record = run(toy.train, synchrony_of("bsp"), [ANY, ANY], [ServerPlace()] * 2, seconds=1.0, point_s=0.25)
    shares = [one.share for one in record.workers]
    assert abs(shares[0].commits - shares[1].commits) <= 1 and shares[0].commits > 20
    assert all(one.samples == 3 * one.batches for one in shares)
    assert {one.weight for worker in record.workers for one in worker.commits} == {0.5}
    # Equal workers: after n rounds each of five weights has (1 - RATE)^n left of its way from 0 to 1. The end may find
    # one server, with two of them, a round before the other one.
    last = record.losses[-1]
    rounds = range(shares[0].commits - 1, shares[0].commits + 2)
    left = [(1 - toy.RATE) ** (2 * n) for n in rounds]
    ends = [2 * first + 3 * second for first, second in itertools.product(left, left)]
    assert any(last.held_out_loss == pytest.approx(end, rel=1e-3) for end in ends)
    assert record.losses[0].held_out_loss == 5.0 and len(record.losses) == 5
    for worker in record.workers:
        busy_s = worker.share.batches * worker.batch_s
        assert busy_s + worker.share.waiting_s + worker.share.communication_s == pytest.approx(1.0, abs=0.05)
    assert [one.parameter_bytes for one in record.servers] == [8, 12]
    record.save(tmp_path / "run.json")
    assert load_record(tmp_path / "run.json") == record


@best_of(3)
def test_nobody_waits_for_the_slow_one_but_in_rounds():
    together = run(toy.uneven, synchrony_of("bsp"), [ANY] * 3, seconds=1.5)
    apart = run(toy.uneven, synchrony_of("async"), [ANY] * 3, seconds=1.5)
    assert together.workers[0].share.waiting_s > 0.4  # of each 30 ms it trains 10
    assert together.workers[2].share.waiting_s < 0.3
    assert max(one.share.waiting_s for one in apart.workers) < 0.15
    fast, _, slow = (one.share for one in apart.workers)
    assert fast.commits > 1.8 * slow.commits
    assert slow.staleness_mean > fast.staleness_mean > 0
    added = sorted((one.at_s, one.staleness) for worker in apart.workers for one in worker.commits)
    assert added[0][1] == 0


def test_slack_holds_the_fast_one():
    record = run(toy.uneven, synchrony_of("ssp:2"), [ANY] * 3, seconds=1.0)
    commits = [one.share.commits for one in record.workers]
    assert max(commits) - min(commits) <= 3


def test_every_counts_batches_of_a_commit():
    record = run(toy.train, synchrony_of("async:4"), [ANY] * 2, seconds=0.8)
    assert {one.batches for worker in record.workers for one in worker.commits} == {4}


def test_momentum_of_the_servers_is_nesterovs():
    kind = type(synchrony_of("local"))
    synchrony = kind(every=2, outer_rate=1.0, outer_momentum=0.5, nesterov=True)
    record = run(toy.train, synchrony, [ANY], seconds=0.6, point_s=0.6)
    weight, velocity = 0.0, 0.0
    expected = []
    for _ in range(len(record.workers[0].commits) + 1):
        expected.append(5 * (1 - weight) ** 2)
        update = (1 - weight) * (1 - (1 - toy.RATE) ** 2)
        velocity = 0.5 * velocity + update
        weight += update + 0.5 * velocity
    found = record.losses[-1].held_out_loss
    assert any(found == pytest.approx(one, rel=1e-3, abs=1e-9) for one in expected[-2:])


@pytest.mark.parametrize(
    ("train", "says"),
    [
        (toy.failing, "worker 1 failed: (.|\n)*no data here"),
        (toy.leaving, "worker 1 ended before it was ready"),
        (toy.different, "worker 1 trains 7 parameters, worker 0 5"),
        (toy.doubles, "parameters\\[0\\] is torch.float64 on cpu"),
        (toy.stuck, "worker 1 ended no batch within 1 s"),
        (toy.turned, r"parameters\[1\] is of shape \(4, 3\) on worker 1 and of shape \(3, 4\) on worker 0"),
        (toy.split, r"parameters\[1\] is of shape \(3,\) on worker 1 and of shape \(2,\) on worker 0"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_said(train, says):
    with pytest.raises(CdmppError, match=says):
        run(train, synchrony_of("async"), [ANY, ANY], seconds=1.0)


@pytest.mark.parametrize(
    ("train", "says"),
    [
        (toy.nothing, r"worker 0 failed: the training function returned None: expected an object with parameters"),
        (toy.exiting, r"worker 0 ended before it was ready, with exit code 3$"),
        (toy.raising, r"^worker 0 failed: ValueError: my own error, at .*toy_training.py:\d+, `raise ValueError.*`$"),
    ],
)
def test_what_the_users_code_does_before_the_clock_starts_is_one_line(train, says):
    with pytest.raises(CdmppError, match=says):
        run(train, synchrony_of("async"), [ANY], seconds=1.0)


def test_a_batch_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr("cdmpp.synchrony.processes.job._LEAST_START_S", 10.0)
    with pytest.raises(CdmppError, match=r"worker 0 has not answered for 1\d s: its training function and 2 batches"):
        run(toy.hanging, synchrony_of("async"), [ANY], seconds=1.0)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (7, r"failed: call 3 of batch\(\) on worker 1 returned 7: expected \(samples, loss\)"),
        ((3, 0.5, 0.5), r"call 3 of batch\(\) on worker 1 returned \(3, 0.5, 0.5\)"),
        ((-8, 0.5), r"the samples of call 3 of batch\(\) on worker 1 is -8: expected a whole number from 1 "),
        ((0, 0.5), "the samples of call 3 .* is 0"),
        ((2.5, 0.5), "the samples of call 3 .* is 2.5"),
        ((3, math.nan), r"the loss of call 3 of batch\(\) on worker 1 is nan: expected a finite number"),
        ((3, -math.inf), "the loss of call 3 .* is -inf"),
        ((3, "0.5"), "the loss of call 3 .* is '0.5': expected a number"),
        ((3, torch.zeros(2)), r"the loss of call 3 .* has shape \(2,\): expected one number"),
    ],
)
def test_what_a_batch_may_not_return_is_refused(returned, says):
    with pytest.raises(CdmppError, match=says):
        run(partial(toy.returning, returned=returned), synchrony_of("async"), [ANY, ANY], seconds=5.0)


def test_a_loss_may_be_a_tensor_of_one_element():
    record = run(toy.tensor_loss, synchrony_of("async"), [ANY], seconds=0.5, point_s=0.5)
    assert 0 < record.losses[-1].batch_loss < 5.0


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raise", r"from point 1 of 3 on: loss\(\) failed: (.|\n)*ZeroDivisionError: no held-out samples"),
        ("exit", r"from point 1 of 3 on: loss\(\) ended its process$"),
        ("nan", r"from point 1 of 3 on: loss\(\) failed: the loss of loss\(\) is nan"),
    ],
)
def test_a_loss_that_fails_leaves_the_record(tmp_path, how, says):
    record = run(partial(toy.bad_loss, how=how), synchrony_of("async"), [ANY], seconds=0.5, point_s=0.25)
    assert [one.held_out_loss for one in record.losses] == [5.0, None, None]
    assert record.workers[0].share.batches > 10
    assert len(record.warnings) == 1 and re.search(says, record.warnings[0])
    record.save(tmp_path / "run.json")
    assert load_record(tmp_path / "run.json") == record


@pytest.mark.parametrize("error", [EOFError, ConnectionResetError])
def test_a_connection_that_the_users_code_loses_is_told_and_no_end_of_the_job(error):
    with pytest.raises(CdmppError, match=rf"worker 0 failed: {error.__name__}: no more data, at .*toy_training.py:\d+"):
        run(partial(toy.cut, error=error, where="batch"), synchrony_of("async"), [ANY, ANY], seconds=30.0)


def test_a_connection_that_the_users_loss_loses_leaves_the_record():
    lossy = partial(toy.cut, error=EOFError, where="loss")
    with pytest.raises(CdmppError, match="worker 0 failed: EOFError"):  # batches ask for the loss too
        run(lossy, synchrony_of("async"), [ANY], seconds=0.5)


def test_all_that_a_run_did_is_in_its_record_though_its_processes_are_killed():
    """Commits, batches and losses are told as they happen: those of the record are whole, and add up."""
    record = run(toy.train, synchrony_of("async:2"), [ANY, ANY], [ServerPlace()], seconds=1.0, point_s=0.25)
    for worker in record.workers:
        assert worker.share.batches - sum(one.batches for one in worker.commits) in (0, 1, 2)
        assert all(one.batches == 2 for one in worker.commits)
        assert sum(worker.share.staleness.values()) == worker.share.commits == len(worker.commits)
    assert record.losses[-1].samples == sum(one.share.samples for one in record.workers)
    assert len(record.losses) >= 2 and record.losses[0].at_s == 0 and record.losses[-1].at_s == record.seconds
    assert all(one.held_out_loss is not None for one in record.losses)


def test_an_interrupt_is_said_once():
    command = [sys.executable, "-m", "tests.synchrony.processes.toy_training"]
    ends = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **ends) as started:
        assert started.stdout.readline() == "trains\n"
        os.killpg(started.pid, signal.SIGINT)  # as the terminal does: every process has it
        _, said = started.communicate(timeout=500)
    assert said.count("Traceback") == 1 and said.endswith("KeyboardInterrupt\n")


def test_too_many_processes_are_refused_before_any_starts(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: pytest.fail("a process was started"))
    with pytest.raises(UsageError, match="number of servers is 2000: expected a whole number from 1 to 64"):
        run(toy.train, synchrony_of("bsp"), [ANY], [ServerPlace()] * 2000)
    with pytest.raises(UsageError, match="number of workers is 2000: expected a whole number from 1 to 200"):
        run(toy.train, synchrony_of("bsp"), [ANY] * 2000)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    with pytest.raises(UsageError, match="100 workers and 50 servers need about 5,568 open files, .* may have 1,024"):
        run(toy.train, synchrony_of("bsp"), [ANY] * 100, [ServerPlace()] * 50)


def test_servers_start_only_for_parameters_that_are_there(monkeypatch):
    started = list[object]()
    begin = Crew.start
    monkeypatch.setattr(Crew, "start", lambda self, *given: started.append(given[0]) or begin(self, *given))
    with pytest.raises(UsageError, match="6 servers for 5 parameters"):
        run(toy.train, synchrony_of("bsp"), [ANY], [ServerPlace()] * 6)
    assert started == [work]


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="workers is empty"):
        run(toy.train, synchrony_of("bsp"), [])
    with pytest.raises(UsageError, match="function of a module"):
        run(lambda seed, worker, workers: None, synchrony_of("bsp"), [ANY])
    with pytest.raises(UsageError, match="worker.cpu_share"):
        WorkerPlace(cpu_share=1.5)
    with pytest.raises(UsageError, match="server.mbit"):
        ServerPlace(mbit=0.0)
    with pytest.raises(UsageError, match="seconds"):
        run(toy.train, synchrony_of("bsp"), [ANY], seconds=0.0)


def test_a_file_that_is_no_record_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(CdmppError, match="no record of a run"):
        load_record(tmp_path / "other.json")
