"""A Dask cluster whose workers crash, die, differ or are not there: each request is answered once, or refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cdmpp import cli
from cdmpp.errors import MissingToolError, RemoteError, UsageError
from cdmpp.execute import cluster as module
from cdmpp.execute.executor import executing, executor_address, is_here, replies_of
from cdmpp.execute.installation import Installation
from cdmpp.execute.work import Work
from tests.execute.conftest import CHILD, ECHO, Cluster, distributed


def asked(n, op="echo", **more):
    return [{"op": op, "value": value, **more} for value in range(n)]


def test_all_requests_are_answered_once_in_batches(cluster):
    with executing(cluster.address) as executor:
        assert not is_here()
        sent = []
        submit = executor.submit
        executor.submit = lambda batch, key: sent.append(len(batch.requests)) or submit(batch, key)
        found = list(replies_of(ECHO, iter(asked(2000)), 2000))
    assert is_here()
    assert sorted(index for index, _ in found) == list(range(2000)) and all(r == {"echo": i} for i, r in found)
    assert sum(sent) == 2000 and len(sent) < 200 and max(sent) > 50  # not one by one


def test_crashes_and_hangs_cost_their_own_request_as_they_do_here(cluster):
    work, requests = replace(ECHO, limit_s=1), [{"op": "crash"}, *asked(2), {"op": "hang"}]
    here = dict(replies_of(work, requests, 4))
    with executing(cluster.address):
        assert dict(replies_of(work, requests, 4)) == here
    assert here[0]["status"] == -6 and here[3] == {"cause": "timeout"}


def test_a_dead_worker_s_requests_are_begun_again(killing: Cluster, tmp_path):
    requests = asked(12, "once", folder=str(tmp_path), seconds=0.1)
    with executing(killing.address):
        found = list(replies_of(ECHO, requests, 12))
    assert sorted(index for index, _ in found) == list(range(12))
    assert dict(found) == {i: {"echo": i, "number": 0.1 * i} for i in range(12)}
    begun = [int(path.name.split(".")[0]) for path in tmp_path.iterdir()]
    assert set(begun) == set(range(12)) and len(begun) <= 12 + 2  # one worker had two of them


def test_a_request_that_workers_die_of_is_a_crash_and_the_others_are_answered(cluster, tmp_path):
    requests = [*asked(3), {"op": "end parent"}, *asked(3)]
    with executing(cluster.address):
        found = dict(replies_of(ECHO, requests, 7))
    assert found.pop(3) == {"cause": "crash", "status": -9, "message": "workers died of it, one after another"}
    assert found == {0: {"echo": 0}, 1: {"echo": 1}, 2: {"echo": 2}, 4: {"echo": 0}, 5: {"echo": 1}, 6: {"echo": 2}}


def test_who_stops_listening_ends_what_runs(cluster, tmp_path):
    requests = [{"op": "echo", "value": 0}, *asked(6, "once", folder=str(tmp_path), seconds=60)]
    with executing(cluster.address):
        with closing(replies_of(replace(ECHO, limit_s=100), requests, 7)) as replies:
            assert next(replies) == (0, {"echo": 0})
            wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        children = [int(path.name.split(".")[1]) for path in tmp_path.iterdir()]
        wait_until(lambda: not any(Path(f"/proc/{child}/exe").exists() for child in children))
        assert dict(replies_of(ECHO, asked(4), 4)) == {i: {"echo": i} for i in range(4)}  # the workers are free
    assert len(list(tmp_path.iterdir())) == 2  # nothing else was begun


KILLED = """
import json, sys
from cdmpp.execute.executor import executing, replies_of
from cdmpp.execute.work import Work
address, words, requests = json.loads(sys.argv[1])
with executing(address):
    list(replies_of(Work(tuple(words), 500, 2), requests, len(requests)))
"""


def test_a_client_that_is_killed_holds_no_worker_and_leaves_other_clients_alone(cluster, tmp_path):
    words = [cluster.address, CHILD, asked(6, "once", folder=str(tmp_path), seconds=300)]
    killed = subprocess.Popen([sys.executable, "-c", KILLED, json.dumps(words)])
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        children = [int(path.name.split(".")[1]) for path in tmp_path.iterdir()]
    finally:
        killed.kill()
        killed.wait()
    with executing(cluster.address):
        assert dict(replies_of(ECHO, asked(4), 4)) == {i: {"echo": i} for i in range(4)}
    wait_until(lambda: not any(Path(f"/proc/{child}/exe").exists() for child in children))
    assert len(list(tmp_path.iterdir())) == 2  # nothing else was begun


def test_ctrl_c_ends_a_command_with_one_line(cluster, tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        with closing(replies_of(ECHO, [{"op": "hang"}], 1)) as replies:
            threading.Timer(0.5, lambda: os.kill(os.getpid(), 2)).start()
            next(replies)

    monkeypatch.setattr("cdmpp.data.codes.derive_codes", interrupted)
    began_s = time.monotonic()
    assert cli.main(["data", "codes", "--path", str(tmp_path), "--executor", cluster.address]) == 130
    assert "the same command goes on from there" in capsys.readouterr().err and time.monotonic() - began_s < 15


def test_a_child_that_does_not_start_is_told(cluster):
    broken = Work(("-c", "raise SystemExit('broken wheel')"), 5, 2)
    told = pytest.raises(RemoteError, match=r"cannot work on this: \S+ says: .* did not start: broken wheel")
    with executing(cluster.address), told:
        list(replies_of(broken, asked(2), 2))


@pytest.mark.parametrize("given", ["", "dask", "dask://", "dask://here", "dask://here:0", "dask://here:70000",
                                   "tcp://here:8786", "dask://a b:1", "dask://here:8786/x", "Local"])  # fmt: skip
def test_an_address_that_is_none_is_refused(given):
    with pytest.raises(UsageError, match=r"executor .* is unknown: expected local, or dask://HOST:PORT"):
        executor_address(given)


def test_addresses_of_all_forms_are_taken():
    for one in ("local", "dask://127.0.0.1:8786", "dask://node-1.cluster_a:1", "dask://[fe80::1]:65535"):
        assert executor_address(one) == one


def test_a_scheduler_that_is_not_there_is_told_in_time(monkeypatch):
    monkeypatch.setattr(module, "CONNECT_S", 0.5)
    with (
        pytest.raises(RemoteError, match="no Dask scheduler answers at tcp://127.0.0.1:9 within 0.5 s"),
        executing("dask://127.0.0.1:9"),
    ):
        pytest.fail("connected")


def test_who_listens_and_says_nothing_is_no_scheduler(monkeypatch):
    monkeypatch.setattr(module, "CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"dask://127.0.0.1:{silent.getsockname()[1]}"
        told = pytest.raises(RemoteError, match=r"no Dask scheduler .*\(whoever listens there says nothing\)")
        with told, executing(address):
            pytest.fail("connected")


def test_who_speaks_another_protocol_is_no_scheduler(monkeypatch):
    monkeypatch.setattr(module, "CONNECT_S", 2.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        told = pytest.raises(RemoteError, match="no Dask scheduler answers")
        with told, executing(f"dask://127.0.0.1:{pages.server_port}"):
            pytest.fail("connected")
        pages.shutdown()


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(MissingToolError, match=r"needs Dask .*: pip install 'cdmpp\[cluster\]'"),
        executing("dask://127.0.0.1:8786"),
    ):
        pytest.fail("connected")


def test_a_scheduler_without_workers_is_told_in_time(monkeypatch):
    monkeypatch.setattr(module, "WORKERS_S", 0.3)
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as empty:
        address = empty.scheduler_address.replace("tcp://", "dask://")
        with (
            pytest.raises(RemoteError, match="has no worker after 0.3 s: start some with `dask worker 127"),
            executing(address),
        ):
            pytest.fail("connected")


def test_workers_of_another_version_are_refused_with_what_differs(cluster, monkeypatch):
    other = replace(Installation.here(), cdmpp="9.9", python="3.99", libraries={"numpy": "0.1"})
    monkeypatch.setattr(Installation, "here", staticmethod(lambda: other))
    with (
        pytest.raises(RemoteError, match=r"would not give the same answers: .*cdmpp .*, here 9\.9.*3\.99.*numpy"),
        executing(cluster.address),
    ):
        pytest.fail("connected")


def test_another_source_and_another_conf_are_differences():
    here = Installation.here()
    assert here.differences(here) == () and Installation.from_json(here.to_json()) == here
    (source,) = here.differences(replace(here, source="other"))
    (conf,) = here.differences(replace(here, own_conf="other"))
    assert "another source of cdmpp" in source and "other devices or cores in conf/" in conf


def test_a_worker_that_comes_later_is_looked_at_too(cluster, monkeypatch):
    with executing(cluster.address) as executor:
        executor._here = replace(executor._here, source="newer")
        with pytest.raises(RemoteError, match="another source of cdmpp"):
            list(replies_of(ECHO, asked(2), 2))


def test_a_test_s_cluster_that_lost_a_worker_for_good_is_replaced(cluster):
    cluster.dask.scale(1)
    wait_until(lambda: len(cluster.client.nthreads()) == 1)
    cluster.make_whole(limit_s=1)
    assert len(cluster.client.nthreads()) == 2


def test_a_lost_worker_is_told_once_and_the_other_one_does_the_rest(killing, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(module, "_LOOK_S", 0.1)
    caplog.set_level("INFO", "cdmpp")
    with executing(killing.address):
        found = list(replies_of(ECHO, asked(30, "once", folder=str(tmp_path), seconds=0.1), 30))
    assert len(found) == 30
    first, *others = [record.getMessage() for record in caplog.records]
    assert first == f"{killing.address}: workers: 2, threads: 2"
    (lost,) = [text for text in others if "lost worker tcp://" in text]
    assert "; its work goes to others (workers: " in lost  # 1, or 2 where it is there again


@pytest.fixture
def two_commands(tmp_path):
    """A scheduler and a worker as a user would start them; what is yielded starts and names them."""
    place, started = tmp_path / "scheduler.json", dict[str, subprocess.Popen[bytes]]()
    words = {"scheduler": ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"], "worker": ["--no-nanny"]}
    try:
        for name, options in words.items():
            command = [sys.executable, "-m", f"distributed.cli.dask_{name}", *options, "--scheduler-file", str(place)]
            started[name] = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=tmp_path)
            wait_until(place.is_file)
        yield json.loads(place.read_text())["address"].replace("tcp://", "dask://"), started
    finally:
        for process in started.values():
            process.kill()  # also one that was stopped
            process.wait()


@pytest.mark.parametrize(("name", "told"), [
    ("scheduler", "the Dask scheduler .* is gone .* then give the same command"),
    ("worker", "has had no worker for 0.5 s. What was done is kept: start workers, then give the same command"),
])  # fmt: skip
def test_a_scheduler_or_all_workers_that_end_are_told(two_commands, monkeypatch, caplog, name, told):
    monkeypatch.setattr(module, "ALONE_S", 0.5)
    monkeypatch.setattr(module, "_LOOK_S", 0.2)
    address, started = two_commands
    with executing(address), closing(replies_of(ECHO, [*asked(1), {"op": "hang"}], 2)) as replies:
        assert next(replies) == (0, {"echo": 0})
        monkeypatch.setattr(module, "CONNECT_S", 2.0)
        started[name].kill()
        with pytest.raises(RemoteError, match=told):
            next(replies)
    assert ("none is left: waiting 0.5 s for one" in caplog.text) == (name == "worker")


@pytest.mark.parametrize("name", ["scheduler", "worker"])
def test_one_that_hangs_before_the_work_begins_is_told(two_commands, monkeypatch, name):
    address, started = two_commands
    with executing(address):  # both are up
        pass
    limit, told = {
        "scheduler": ("CONNECT_S", "no Dask scheduler answers at .* within 5 s"),
        "worker": ("ANSWER_S", "not all workers .* answer within 5 s: end those that hang"),
    }[name]
    monkeypatch.setattr(module, limit, 5.0)
    started[name].send_signal(signal.SIGSTOP)
    with pytest.raises(RemoteError, match=told), executing(address):
        pytest.fail("connected")


def wait_until(is_true, limit_s: float = 300.0) -> None:
    end_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < end_s, "it did not come true"
        time.sleep(0.05)
