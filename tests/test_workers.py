"""Crashes and hangs of the child process, with operations that misbehave on purpose."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdmpp.errors import CdmppError
from cdmpp.platform.workers import Worker, keep_worker, run_many, take_worker

CHILD = """
import os, time
from cdmpp.platform.workers import serve

def ready(request):
    print("nobody reads this")
    return {}

def unwell(request):
    raise ValueError("unwell")

serve({
    "ready": ready,
    "echo": lambda request: {"echo": request["value"]},
    "crash": lambda request: os.abort(),
    "hang": lambda request: time.sleep(60),
    "pid": lambda request: {"echo": os.getpid()},
    "unwell": unwell,
    "enough": lambda request: {"echo": os.getpid(), "restart": True},
})
"""


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    return (str(script),)


@pytest.fixture
def workers(command: tuple[str, ...]) -> Iterator[list[Worker]]:
    started = [Worker(command), Worker(command)]
    yield started
    for worker in started:
        worker.stop()


def test_a_crash_costs_one_request(workers: list[Worker]) -> None:
    assert workers[0].request({"op": "echo", "value": 1}, 20) == {"echo": 1}
    assert workers[0].request({"op": "crash"}, 20)["cause"] == "crash"
    assert workers[0].request({"op": "echo", "value": 2}, 20) == {"echo": 2}


def test_a_hang_ends_at_the_time_limit(workers: list[Worker]) -> None:
    assert workers[0].request({"op": "hang"}, 0.2) == {"cause": "timeout"}
    assert workers[0].request({"op": "echo", "value": 3}, 20) == {"echo": 3}


def test_what_a_process_waits_for_a_core_is_added_to_its_time(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers[0].start()
    waited_s = iter([5.0, 5.4])
    monkeypatch.setattr(workers[0], "_queued", lambda: next(waited_s, 5.4))
    workers[0].send({"op": "hang"}, 0.2)
    first = workers[0].deadline
    assert workers[0].advance() is None
    assert workers[0].deadline == pytest.approx(first + 0.4)
    assert workers[0].advance() == {"cause": "timeout"}


def test_many_requests_share_the_workers_and_all_are_answered(workers: list[Worker]) -> None:
    messages = [{"op": "crash" if i == 3 else "echo", "value": i} for i in range(9)]
    replies = dict(run_many(workers, messages, 20))
    assert sorted(replies) == list(range(9))
    assert replies[3]["cause"] == "crash"
    assert all(replies[i] == {"echo": i} for i in range(9) if i != 3)


def test_no_message_no_process(workers: list[Worker]) -> None:
    assert list(run_many(workers, [], 20)) == []


def test_ctrl_c_of_the_terminal_does_not_end_a_worker(workers: list[Worker]) -> None:
    """A worker that it killed would be taken for a program that crashes, and that program is never tried again."""
    child = workers[0].request({"op": "pid"}, 20)["echo"]
    os.kill(child, signal.SIGINT)
    assert workers[0].request({"op": "pid"}, 20) == {"echo": child}


def test_a_worker_ends_with_the_group_of_its_parent(workers: list[Worker]) -> None:
    child = workers[0].request({"op": "pid"}, 20)["echo"]
    assert os.getpgid(child) == os.getpgid(0)


def test_an_error_is_the_request_s_own(workers: list[Worker]) -> None:
    reply = workers[0].request({"op": "unwell"}, 20)
    assert reply == {"cause": "unwell error", "message": "ValueError: unwell"}


def test_a_process_that_says_it_is_of_no_more_use_is_started_again(workers: list[Worker]) -> None:
    first, second = (workers[0].request({"op": "enough"}, 20) for _ in range(2))
    assert "restart" not in first and first["echo"] != second["echo"]


def test_a_process_that_does_not_start_is_told(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit('broken wheel')")
    with pytest.raises(CdmppError, match="did not start: broken wheel"):
        Worker((str(script),)).start()


def test_workers_end_with_a_caller_who_stops_listening(workers: list[Worker]) -> None:
    replies = run_many(workers, [{"op": "echo", "value": 0}, {"op": "hang"}], 20)
    next(replies)
    replies.close()
    assert sum(worker.running for worker in workers) == 1


def test_two_processes_are_kept_for_the_next_caller_in_the_same_surroundings(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdmpp.platform.workers._spare", [])
    one, two, three = (Worker(command) for _ in range(3))
    for worker in (one, two, three):
        worker.start()
        keep_worker(worker)
    assert one.running and two.running and not three.running
    taken = take_worker(command)
    assert taken in (one, two)
    keep_worker(taken)
    monkeypatch.setenv("CDMPP_CACHE", "elsewhere")
    assert take_worker(command) not in (one, two) and not one.running and not two.running
