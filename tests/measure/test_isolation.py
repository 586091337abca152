"""Crashes and hangs of the child process, with operations that misbehave on purpose."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cdmpp.measure.isolation import Worker, run_many

CHILD = """
import json, os, sys, time
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[-2]))
while True:
    try:
        request = json.loads(connection.recv_bytes())
    except EOFError:
        break
    if request["op"] == "crash":
        os.abort()
    if request["op"] == "hang":
        time.sleep(60)
    if request["op"] == "group":
        request["value"] = os.getpgid(0)
    connection.send_bytes(json.dumps({"echo": request.get("value")}).encode())
"""


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    monkeypatch.setattr("cdmpp.measure.isolation.COMMAND", (sys.executable, str(script)))
    started = [Worker(), Worker()]
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


def test_many_requests_share_the_workers_and_all_are_answered(workers: list[Worker]) -> None:
    messages = [{"op": "crash" if i == 3 else "echo", "value": i} for i in range(9)]
    replies = dict(run_many(workers, messages, 20))
    assert sorted(replies) == list(range(9))
    assert replies[3]["cause"] == "crash"
    assert all(replies[i] == {"echo": i} for i in range(9) if i != 3)


def test_no_message_no_process(workers: list[Worker]) -> None:
    assert list(run_many(workers, [], 20)) == []


def test_ctrl_c_of_the_terminal_does_not_reach_a_worker(workers: list[Worker]) -> None:
    """A worker that it killed would be taken for a program that crashes, and that program is never tried again."""
    assert workers[0].request({"op": "group"}, 20)["echo"] != os.getpgid(0)
