"""How jobs are measured: what frames a job, what other programs take, and batches of a fixed CPU time."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from benchmarks.synchrony.framed import Framed, means
from benchmarks.synchrony.judge_noise import batch_rows, repeat_rows
from benchmarks.synchrony.other_programs import cpu_seconds, taken
from benchmarks.synchrony.trainings import BATCH_CPU_S, TRAININGS
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.synchrony.job import Job
from cdmpp.synchrony.policies import synchrony_of
from cdmpp.synchrony.replay import replay_job
from cdmpp.synchrony.worker import Server, Worker


def test_a_frame_has_no_commits_around_a_job_and_tells_batches_from_exchanges():
    link = AlphaBeta(0.0, 0.05)
    job = Job((Worker(0.1, 1, link=link), Worker(0.25, 1, link=link)), 1.0, (Server(),))
    framed = Framed(synchrony_of("async:2"), 2.0, 5.0)
    outcome = replay_job(job, framed, seconds=7.0)
    parts = framed.batch_seconds()
    for part in ("before", "during", "after"):
        assert means(parts[part]) == pytest.approx([0.1, 0.25])
    assert [len(own) for own in parts["before"]] == [18, 6]  # the first is left out
    first, second = (one.commits for one in outcome.workers)
    assert first == 10  # two batches of 0.1 s, a push and a pull of 0.05 s each: 3 s hold ten of those
    assert second == 5


def test_a_worker_without_a_batch_has_no_mean():
    assert means([[1.0, 3.0], []])[0] == 2.0
    assert means([[]])[0] != means([[]])[0]


def test_other_programs_are_those_of_other_groups():
    spin = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass\ninput()"
    ends = {"stdin": subprocess.PIPE, "start_new_session": True}
    before = cpu_seconds()
    assert os.getpid() not in before
    child = subprocess.Popen([sys.executable, "-c", spin], **ends)
    try:
        for _ in range(10_000):
            after = cpu_seconds()
            if after.get(child.pid, 0.0) >= 0.3:
                break
            time.sleep(0.05)
        assert taken(before, {child.pid: after[child.pid]}) >= 0.3
        assert taken(after, after) == 0.0
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("name", TRAININGS)
def test_a_batch_takes_its_cpu_time(name):
    training = TRAININGS[name](0, 0, 1)
    training.batch()
    begin_s = time.process_time()
    training.batch()
    assert BATCH_CPU_S <= time.process_time() - begin_s < 3 * BATCH_CPU_S


def test_noise_of_planted_runs():
    cell = {"network": "cnn", "workers": 2, "share": 0.2, "mbit": 50.0, "every": 1, "servers": 1}
    runs = {
        "grid/x": {"cell": cell, "samples_per_s": 90.0, "batch_before_s": [0.1, 0.1], "batch_after_s": [0.1, 0.1]},
        "again/x": {"cell": cell, "samples_per_s": 110.0, "batch_before_s": [0.3, 0.3], "batch_after_s": [0.3, 0.3]},
        "grid/y": {"cell": cell, "samples_per_s": 1.0, "batch_before_s": [0.2, 0.2], "batch_after_s": [0.2, 0.2]},
    }
    assert batch_rows(runs) == [["cnn", "0.2", "2", "3", "200.0", "33.3", "50.0"]]
    assert repeat_rows(runs) == [[part, "1", "20.0", "20.0", "20.0", "10.0"] for part in ("2", "all")]
