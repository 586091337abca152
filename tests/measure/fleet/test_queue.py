"""The queue on disk: who has which job, what a client that ends leaves, and what a damaged file says."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cdmpp.errors import DataError
from cdmpp.measure.fleet import queue as queue_module
from cdmpp.measure.fleet.job import Job
from cdmpp.measure.fleet.queue import QUEUE_FILE, JobQueue, Refused


def jobs(count: int, device: str = "a") -> list[Job]:
    return [Job.sampled(device, f"{n:016x}", 16, 0) for n in range(count)]


def states(queue: JobQueue, device: str = "a") -> dict[str, int]:
    return {state: number for state, number in queue.counts()[device].items() if number}


def test_jobs_are_queued_once_and_leased_in_order(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path, 3)
    assert queue.add(jobs(3)) == 3 and queue.add(jobs(5)) == 2 and queue.add(jobs(2, "b")) == 2
    assert queue.lease("a", 2) == jobs(5)[:2] and queue.lease("a", 9) == jobs(5)[2:] and queue.lease("a", 1) == []
    assert states(queue) == {"leased": 5} and states(queue, "b") == {"queued": 2}


def test_what_is_asked_for_is_what_makes_a_job() -> None:
    assert Job.sampled("a", "t", 16, 0) == Job.sampled("a", "t", 16, 0)
    asked = [
        *(Job.sampled(device, task, n, seed) for device in "ab" for task in "tu" for n in (1, 2) for seed in (0, 1)),
        *(Job.given("a", "t", texts) for texts in (["x"], ["y"], ["x", "y"])),
    ]
    assert len({job.job_id for job in asked}) == len(asked)


def test_two_clients_never_have_the_same_job(tmp_path: Path) -> None:
    JobQueue(tmp_path, 3).add(jobs(24))

    def work(_: int) -> list[Job]:
        queue, had = JobQueue(tmp_path, 3), []
        while leased := queue.lease("a", 2):
            had += leased
            queue.finish(dict.fromkeys(leased, 4))
        return had

    with ThreadPoolExecutor(4) as pool:
        had = [job for part in pool.map(work, range(4)) for job in part]
    assert sorted(job.task_id for job in had) == [job.task_id for job in jobs(24)]
    assert states(JobQueue(tmp_path, 3)) == {"done": 24} and JobQueue(tmp_path, 3).programs("a") == 96


def test_a_job_waits_while_another_of_its_task_is_leased(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path, 3)
    queue.add([first := Job.sampled("a", "t", 16, 0)])
    assert queue.lease("a", 1) == [first]
    queue.add([second := Job.sampled("a", "t", 32, 0)])
    assert queue.lease("a", 1) == []
    queue.finish({first: 16})
    assert queue.lease("a", 1) == [second]


def test_jobs_of_a_killed_client_come_back_at_once_and_are_refused_in_the_end(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path, 2)
    queue.add(jobs(2))
    lease_and_die = (
        "import os, sys; from pathlib import Path; from cdmpp.measure.fleet.queue import JobQueue\n"
        "print(JobQueue(Path(sys.argv[1]), 2).lease('a', 1)); sys.stdout.flush(); os.kill(os.getpid(), 9)"
    )
    for attempt in (1, 2):
        done = subprocess.run([sys.executable, "-c", lease_and_die, str(tmp_path)], capture_output=True, check=False)
        assert done.returncode == -9 and jobs(1)[0].task_id in done.stdout.decode(), done.stderr
        assert states(queue) == {"leased": 1, "queued": 1}
        assert queue.take_back() == 1 and queue.take_back() == 0
        assert states(queue) == ({"queued": 2} if attempt == 1 else {"refused": 1, "queued": 1})
    assert queue.refused() == [Refused("a", jobs(1)[0].task_id, 2, "its client ended, or was silent for 60 s")]
    assert queue.retry_refused(["b"]) == 0 and queue.retry_refused(["a"]) == 1 and states(queue) == {"queued": 2}


def test_a_silent_client_loses_its_jobs_and_one_that_beats_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both live, as far as can be seen: another machine's processes cannot be looked at."""
    clock = [0.0]
    monkeypatch.setattr(queue_module.time, "monotonic", lambda: clock[0])
    silent, alive, watcher = (JobQueue(tmp_path, 3, lease_s=60.0) for _ in range(3))
    watcher.add(jobs(2))
    (lost,), (kept,) = silent.lease("a", 1), alive.lease("a", 1)
    taken = []
    for moment in range(0, 100, 20):
        clock[0] = float(moment)
        alive.beat()
        taken.append(watcher.take_back())
    assert taken == [0, 0, 0, 0, 1] and watcher.lease("a", 1) == [lost.__class__(**{**vars(lost), "attempts": 1})]
    silent.finish({lost: 3})  # it wakes up: the job is not its own any more
    alive.finish({kept: 5})
    assert states(watcher) == {"leased": 1, "done": 1} and watcher.programs("a") == 5


def test_who_leaves_puts_back_what_it_holds_without_blame(tmp_path: Path) -> None:
    queue, other = JobQueue(tmp_path, 1), JobQueue(tmp_path, 1)
    queue.add(jobs(4))
    first, second, third = queue.lease("a", 3)
    queue.fail(first, "it broke")
    queue.refuse(second, "it cannot be sampled")
    queue.release([third])
    (last,) = other.lease("a", 1)
    assert last.attempts == 0
    other.leave()
    assert states(queue) == {"queued": 2, "refused": 2}
    assert [(one.task_id, one.reason) for one in queue.refused()] == [
        (first.task_id, "it broke"),
        (second.task_id, "it cannot be sampled"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"no database at all, but a text" * 200, "is damaged .*Delete it"), (None, "is damaged .*Delete it")],
)
def test_a_damaged_queue_says_what_to_do(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / QUEUE_FILE
    JobQueue(tmp_path, 3).add(jobs(500))
    if content is None:  # a hole in the middle
        whole = path.read_bytes()
        content = whole[:4096] + b"\xff" * (len(whole) - 8192) + whole[-4096:]
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        JobQueue(tmp_path, 3).counts()


def test_what_is_no_queue_of_ours_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / QUEUE_FILE) as db:
        db.execute("CREATE TABLE job (id TEXT)")
    db.close()
    with pytest.raises(DataError, match="is no queue of cdmpp: move it away"):
        JobQueue(tmp_path, 3)
    (other := tmp_path / "other").mkdir()
    JobQueue(other, 3)
    with sqlite3.connect(other / QUEUE_FILE) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(DataError, match="version 99, this cdmpp has version 1"):
        JobQueue(other, 3)


def test_a_half_written_change_is_undone(tmp_path: Path) -> None:
    """A client killed within a change leaves a journal, which whoever opens the file next plays back."""
    queue = JobQueue(tmp_path, 3)
    queue.add(jobs(2000))
    die = (
        "import os, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('PRAGMA cache_size = 2'); db.execute('BEGIN IMMEDIATE')\n"
        "db.execute(\"UPDATE job SET state = 'done', spec = spec || hex(randomblob(400))\")\n"
        "os.kill(os.getpid(), 9)"
    )
    path = tmp_path / QUEUE_FILE
    subprocess.run([sys.executable, "-c", die, str(path)], check=False)
    assert path.with_name(QUEUE_FILE + "-journal").stat().st_size > 0
    assert states(JobQueue(tmp_path, 3)) == {"queued": 2000}


def test_a_full_disk_stops_the_client_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = JobQueue(tmp_path, 3)
    queue.add(jobs(2))
    connect = sqlite3.connect

    def small(*given: object, **options: object) -> sqlite3.Connection:
        db = connect(*given, **options)  # type: ignore[call-overload]
        db.execute("PRAGMA max_page_count = 1")
        return db  # type: ignore[no-any-return]

    monkeypatch.setattr(queue_module.sqlite3, "connect", small)
    with pytest.raises(DataError, match=r"cannot use the queue .*full\. Free some space"):
        queue.add(jobs(5000))
    monkeypatch.undo()
    assert states(queue) == {"queued": 2}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot use the queue .*file"):
        JobQueue(tmp_path / "file", 3)


def test_the_next_job_is_found_by_an_index(tmp_path: Path) -> None:
    queue = JobQueue(tmp_path, 3)
    queue.add(jobs(100))
    steps: list[str] = []
    connect = sqlite3.connect

    def watched(*given: object, **options: object) -> sqlite3.Connection:
        db = connect(*given, **options)  # type: ignore[call-overload]
        db.set_trace_callback(steps.append)
        return db  # type: ignore[no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_module.sqlite3, "connect", watched)
        queue.lease("a", 1)
    (change,) = (step for step in steps if step.startswith("UPDATE"))
    with connect(queue.path) as db:
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {change}")]
    db.close()
    assert not any(step.startswith("SCAN") for step in plan), plan
