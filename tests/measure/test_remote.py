"""Collection through a real RPC tracker and two real servers on this machine, one of which dies midway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm")
pytest.importorskip("tornado")

from cdmpp.data.records import read_records, write_tasks
from cdmpp.errors import CdmppError
from cdmpp.measure import reference_kernels
from cdmpp.measure.collector import Collector
from cdmpp.measure.protocol import Timed
from cdmpp.measure.remote import free_servers, parse_tracker
from cdmpp.measure.settings import MeasureSettings
from cdmpp.measure.subjects import Subject, Subjects
from cdmpp.platform.files import read_lines
from tests.measure.real_tracker import start_tracker
from tests.measure.tiny_task import TASK, schedules


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def stop(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def tracker() -> Iterator[tuple[str, list[subprocess.Popen[Any]]]]:
    first, address = start_tracker()
    processes: list[subprocess.Popen[Any]] = [first]
    for _ in range(2):
        processes.append(
            start("tvm.exec.rpc_server", "--host", "127.0.0.1", "--port", "9200", "--port-end", "9400",
                  "--tracker", address, "--key", "board")
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 500
        while True:
            try:
                if free_servers(address, "board") == 2:
                    break
            except CdmppError:
                pass
            assert time.monotonic() < deadline, "the servers did not register"
            time.sleep(0.5)
        yield address, processes
    finally:
        for process in reversed(processes):
            stop(process)


class Sabotaged(Collector):
    """Measures ``schedules()`` and kills one server in the middle of the first window."""

    victim: subprocess.Popen[bytes]
    asked = 0

    def _subjects(self, scratch: Path) -> Subjects:
        write_tasks(self.folder, [TASK])
        return Subjects(Subject.of(f"r{n}", TASK, schedule, scratch) for n, schedule in enumerate(schedules()))

    def _timing(self, item: Timed) -> dict[str, Any]:
        if "reference_" not in item.record_id:
            self.asked += 1
            if self.asked == 6:
                stop(self.victim)
        return super()._timing(item)


def test_a_server_that_dies_costs_no_record_and_doubles_none(
    tracker: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The big reference kernel would be sent over the network again and again.
    monkeypatch.setattr(reference_kernels, "WORKLOADS", {"compute": reference_kernels.WORKLOADS["compute"]})
    address, processes = tracker
    with pytest.raises(CdmppError, match="keys it knows: board"):
        free_servers(address, "nothing")
    settings = MeasureSettings(
        "xeon-icelake-avx2",
        builders=1,
        min_separation_s=0.0,
        progress=False,
        runner="rpc",
        tracker=address,
        key="board",
        force=True,
    )
    collector = Sabotaged(settings, tmp_path)
    collector.victim = processes[2]
    report = collector.run()
    assert processes[2].poll() is not None and processes[1].poll() is None
    records = read_records(tmp_path)
    assert report["failures"] == {} and read_lines(tmp_path / "failures.jsonl") == []
    assert sorted(r.record_id for r in records) == sorted(f"r{i}" for i in range(len(schedules())))
    assert all(r.host == "rpc:board" and r.latency_s > 0 and len(r.latency_samples_s) >= 20 for r in records)


@pytest.mark.parametrize("text", ["", "localhost", "host:", ":9190", "host:port"])
def test_tracker_must_be_host_and_port(text: str) -> None:
    with pytest.raises(CdmppError, match="host:port"):
        parse_tracker(text)


def test_a_tracker_that_is_not_there_is_named() -> None:
    with pytest.raises(CdmppError, match="rpc_tracker --port 1"):
        free_servers("127.0.0.1:1", "board")
