"""A make-believe fleet: a tracker and its servers, and the processes of a client, all in this one, at once."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdmpp.data.records import write_tasks
from cdmpp.errors import CdmppError
from cdmpp.measure import subjects, window
from cdmpp.measure.fleet import client, lane, queue
from cdmpp.measure.fleet.tracker import ServerOffer, Servers
from cdmpp.measure.settings import MeasureSettings
from cdmpp.programs.task import Task
from tests.measure.machine import CalmReferenceKernels, Machine, make_task

UNFIT = "the instruction is not known there"


@dataclasses.dataclass
class Server:
    """``dies_at`` counts its visits; ``breaks`` are schedules that take the session along, which then comes back."""

    key: str
    address: str
    lives: bool = True
    held: bool = False
    offered: bool = False
    is_dumb: bool = False
    broken_once: bool = False
    """Its session breaks at the next visit."""
    dies_at: int = 10**9
    breaks: Sequence[str] = ()
    triple: str = "x86_64-linux-gnu"
    runs_references: bool = True
    factor: float = 1.0
    visits: list[str] = dataclasses.field(default_factory=list)
    grows: float = 0.0
    """So much slower is each visit than the one before."""

    @property
    def is_free(self) -> bool:
        return not (self.held or self.offered)


class Fleet(Machine):
    """``servers`` answer visits; everything else a ``Machine`` answers."""

    def __init__(self) -> None:
        super().__init__()
        self.servers: list[Server] = []
        self.lock = threading.RLock()
        self.tracker_lives = True

    def summary(self) -> dict[str, Servers]:
        if not self.tracker_lives:
            raise CdmppError("no RPC tracker answers at nowhere:1")
        living = [server for server in self.servers if server.lives]
        return {
            key: Servers(
                frozenset(s.address for s in living if s.key == key), sum(s.key == key and s.is_free for s in living)
            )
            for key in {s.key for s in living}
        }

    def offer(self, key: str) -> Server | None:
        return next((one for one in self.servers if one.lives and one.key == key and one.is_free), None)


class FleetWorker:
    """A child process: it builds, or holds one of the servers."""

    fleet: Fleet

    def __init__(self, command: Sequence[str], cores: Sequence[int] = (), ready: Any = None) -> None:
        self.server: Server | None = None

    def start(self) -> None: ...

    def kill(self) -> None:
        self.stop()

    def stop(self) -> None:
        if self.server is not None:
            self.server.held, self.server = False, None

    def request(self, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
        with self.fleet.lock:
            if message["op"] == "close_session":
                self.stop()
                return {}
            if message["op"] == "open_session":
                return self._open(message)
            if message["op"] == "time_held":
                return self._visit(message)
            return self.fleet.answer(message)

    def _open(self, message: dict[str, Any]) -> dict[str, Any]:
        (server,) = (one for one in self.fleet.servers if one.address == f"{message['host']}:{message['port']}")
        server.offered = False
        if not server.lives or server.is_dumb:
            return {"cause": "open_session error", "message": "Connection refused"}
        server.held, self.server = True, server
        return {"triple": server.triple, "cpu": "znver5", "hostname": "h"}

    def _visit(self, message: dict[str, Any]) -> dict[str, Any]:
        server = self.server
        if server is None:
            return {"cause": "session lost", "message": "no server is held"}
        if "reference_" in message["path"]:
            return {"samples": [1e-3]} if server.runs_references else {"cause": "remote error", "message": UNFIT}
        schedule = Path(message["path"]).read_text()
        server.visits.append(schedule)
        if len(server.visits) >= server.dies_at:
            server.lives = False
        if not server.lives or schedule in server.breaks or server.broken_once:
            server.broken_once = False
            self.stop()
            return {"cause": "session lost", "message": "Connection reset by peer"}
        reply = self.fleet.answer({**message, "op": "time"})
        grown = server.factor * (1 + server.grows * server.visits.count(schedule))
        return {"samples": [grown * sample for sample in reply["samples"]]} if "samples" in reply else reply


class FleetTracker:
    """What the client asks of a tracker."""

    fleet: Fleet

    def __init__(self, address: str) -> None:
        self.fleet.summary()

        self.parked: list[Server] = []

    def __enter__(self) -> FleetTracker:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.parked[:-1]:  # comes back in some seconds
            server.offered = False

    def request(self, key: str) -> ServerOffer | None:
        with self.fleet.lock:
            if (server := self.fleet.offer(key)) is None:
                self.parked.append(Server("", ""))
                return None
            server.offered = True
            self.parked.append(server)
            host, _, port = server.address.partition(":")
            return ServerOffer(host, int(port), "key")

    def servers(self) -> dict[str, Servers]:
        return self.fleet.summary()


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    built = Fleet()
    FleetWorker.fleet = FleetTracker.fleet = built

    def run_many(workers: Any, messages: Any, limit_s: float) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, message in enumerate(messages):
            yield index, workers[0].request(message, limit_s)

    connect = sqlite3.connect

    def unsynced(*given: Any, **options: Any) -> sqlite3.Connection:
        """No test is about a power failure, and waiting for the disk is most of what a change takes."""
        db = connect(*given, **options)
        db.execute("PRAGMA synchronous = OFF")
        return db

    monkeypatch.setattr(queue.sqlite3, "connect", unsynced)
    for place in (client, lane):
        monkeypatch.setattr(place, "Worker", FleetWorker)
        monkeypatch.setattr(place, "Tracker", FleetTracker)
        monkeypatch.setattr(place, "_POLL_S", 0.01)
    monkeypatch.setattr(lane, "RETURN_S", 0.3)
    monkeypatch.setattr(client, "_PAUSE_S", 0.05)
    monkeypatch.setattr(lane, "ReferenceKernels", CalmReferenceKernels)
    monkeypatch.setattr(lane, "arguments_of", lambda workload: [[[4], "float32"]])
    for place in (subjects, window):
        monkeypatch.setattr(place, "run_many", run_many)
    return built


def settings(out: Path, **changes: Any) -> MeasureSettings:
    """Two networks of five tasks each: 3 conv2d tasks of 3 schedules, 2 elementwise ones of 1."""
    given = {
        "zoo": {"a": {}, "b": {}}, "schedules_per_task": 3, "batch": 6, "min_separation_s": 0.0, "progress": False,
        "runner": "rpc", "tracker": "nowhere:1", "devices": ["board:epyc-9005"], "builders": 1, "out": out,
    }  # fmt: skip
    return MeasureSettings(device="xeon-icelake", **{**given, **changes})


def tasks() -> list[Task]:
    """All tasks of the plan of ``settings``."""
    return [make_task(network, index) for network in "ab" for index in range(5)]


def write_plan(folder: Path) -> None:
    """Write them as a data set has them."""
    write_tasks(folder, tasks())
