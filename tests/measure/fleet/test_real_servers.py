"""A real RPC tracker and real servers on this machine: a client is killed, then a server, while two others go on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm")
pytest.importorskip("tornado")

from cdmpp.data.records import read_records, record_parts
from cdmpp.errors import CdmppError
from cdmpp.measure import reference_kernels
from cdmpp.measure.fleet import client, lane
from cdmpp.measure.fleet.client import FleetClient
from cdmpp.measure.fleet.queue import JobQueue
from cdmpp.measure.fleet.tracker import NO_SERVERS, Tracker
from cdmpp.platform.content import read_parquet
from tests.measure.fleet.real_tasks import DEVICE, PROGRAMS, SIZES, settings, shrink_reference_kernels, write_source
from tests.measure.real_tracker import start_tracker

CLIENT = """
import sys
from pathlib import Path
from cdmpp.measure.fleet.client import FleetClient
from tests.measure.fleet.real_tasks import settings, shrink_reference_kernels
shrink_reference_kernels()
tracker, source, out = sys.argv[1], *map(Path, sys.argv[2:])
FleetClient(settings(tracker, source, out), out).run()
"""
REPOSITORY = Path(__file__).parents[3]


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip


def end(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(what: str, holds: Callable[[], bool], limit_s: float = 300.0) -> None:
    last = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < last, f"not within {limit_s:g} s: {what}"
        time.sleep(0.1)


@pytest.fixture
def tracker() -> Iterator[tuple[str, dict[str, subprocess.Popen[Any]]]]:
    """Two servers of key ``board``, by their addresses: hosts of a loopback network."""
    first, address = start_tracker()
    processes: dict[str, subprocess.Popen[Any]] = {"": first}
    for host in ("127.0.0.2", "127.0.0.3"):
        words = "--host", "0.0.0.0", "--port", "9500", "--port-end", "9700", "--tracker", address, "--key", "board"
        processes[host] = start("-m", "tvm.exec.rpc_server", *words, "--custom-addr", host)

    def free() -> bool:
        try:
            with Tracker(address) as found:
                return found.servers().get("board", NO_SERVERS).free == 2
        except CdmppError:
            return False

    try:
        wait_for("the servers register", free)
        yield address, processes
    finally:
        for process in reversed(processes.values()):
            end(process)


def rows(out: Path) -> list[str]:
    return [key for path in record_parts(out) for key in read_parquet(path, ["record_id"])["record_id"].to_pylist()]


def test_kills_of_a_client_and_of_a_server_lose_nothing_and_double_nothing(
    tracker: tuple[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORKLOADS", "TOLERANCE"):  # restored in the end
        monkeypatch.setattr(reference_kernels, name, getattr(reference_kernels, name))
    shrink_reference_kernels()
    monkeypatch.setattr(lane, "RETURN_S", 1.0)
    monkeypatch.setattr(client, "_PAUSE_S", 1.0)
    address, processes = tracker
    out, source = tmp_path / "out", tmp_path / "source"
    write_source(source)
    with pytest.raises(CdmppError, match=r"no server with key 'nothing' \(keys it knows: board\)"):
        FleetClient(settings(address, source, out, devices=[f"nothing:{DEVICE}"]), out)

    first = start("-c", CLIENT, address, str(source), str(out))
    try:
        wait_for("the first client records something", lambda: first.poll() is not None or len(rows(out)) > 0)
    finally:
        first.kill()  # its child processes see that and end by themselves
        first.wait()
    assert first.returncode == -signal.SIGKILL
    recorded = rows(out)
    left = JobQueue(out, 5).counts()[DEVICE]
    assert 0 < len(recorded) < PROGRAMS and left["leased"] > 0

    def kill_a_server() -> None:
        wait_for("the others record something", lambda: len(rows(out)) > len(recorded))
        end(processes["127.0.0.3"])

    saboteur = threading.Thread(target=kill_a_server)
    saboteur.start()
    with ThreadPoolExecutor(2) as pool:
        reports = list(
            pool.map(lambda _: FleetClient(settings(address, source, out, max_servers=1), out).run(), range(2))
        )
    saboteur.join()
    assert processes["127.0.0.3"].poll() is not None
    assert reports[0]["devices"][DEVICE]["jobs"] == {"queued": 0, "leased": 0, "done": len(SIZES), "refused": 0}
    assert set(Counter(rows(out)).values()) == {1} and len(rows(out)) == PROGRAMS
    records = read_records(out)
    assert all(r.latency_s > 0 and len(r.extra["samples_per_visit"].split(",")) >= 2 for r in records)
    hosts = {record.host for record in records}
    assert any("127.0.0.2" in host for host in hosts) and all(host.startswith("rpc:board 127.0.0.") for host in hosts)
    assert not list(tmp_path.glob("**/*.tmp"))
