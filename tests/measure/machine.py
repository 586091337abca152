"""A make-believe machine for the collector: it answers requests as workers would, at once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdmpp.measure import collection, collector, disturbance, subjects, torch_collector, window
from cdmpp.measure.settings import MeasureSettings
from cdmpp.programs.task import Task


class Machine:
    """Answers requests like a worker; ``broken`` and ``noise`` go by schedule, ``kill_after`` counts visits.

    In ``busy_visits`` every visit to a program takes longer than the one before; ``load`` is that of others.
    """

    def __init__(self) -> None:
        self.visits: list[str] = []
        self.samples_asked = 0
        self.broken: dict[str, dict[str, Any]] = {}
        self.kill_after = 10**9
        self.noise: dict[str, list[float]] = {}
        self.load = 0.25
        self.busy_visits: range = range(0)

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["op"] == "import":
            return {"tasks": [dataclasses.asdict(make_task(message["network"], i)) for i in range(5)]}
        if message["op"] == "sample":
            self.samples_asked += 1
            n = message["n"] if message["task"]["op_class"] == "conv2d" else 1
            texts = [json.dumps([[message["task"]["task_id"], i], []]) for i in range(n)]
            return {"schedules": texts}
        if message["op"] == "build":
            if message["schedule"] in self.broken and self.broken[message["schedule"]]["cause"] == "crash":
                return dict(self.broken[message["schedule"]])
            Path(message["path"]).write_text(message["schedule"])
            return {}
        schedule = message["operator"] if message["op"] == "time_torch" else Path(message["path"]).read_text()
        self.visits.append(schedule)
        if len(self.visits) > self.kill_after:
            raise KeyboardInterrupt
        if schedule in self.broken:
            return dict(self.broken[schedule])
        if len(self.visits) in self.busy_visits:
            return {"samples": [1e-3 * (1 + 0.1 * self.visits.count(schedule))] * 10}
        factor = self.noise.get(schedule, [1.0])
        return {"samples": [1e-3 * (factor.pop(0) if len(factor) > 1 else factor[0])] * 10}


class FakeWorker:
    machine: Machine

    def __init__(self, command: Sequence[str], cores: Sequence[int] = (), ready: Any = None) -> None:
        self.cores, self.ready = tuple(cores), ready

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def request(self, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
        return self.machine.answer(message)


class CalmReferenceKernels:
    def __init__(self, worker: Any, log: Path, timing: Any, programs: Any) -> None: ...

    def take(self) -> dict[str, float]:
        return {}

    def quiet(self, run_s: dict[str, float]) -> bool:
        return True

    def wait_until_quiet(self) -> bool:
        return True


def make_task(network: str, index: int) -> Task:
    kind = "conv2d" if index % 2 == 0 else "elementwise"
    return Task(f"{network}{index:015d}", f"{kind}{index}", kind, "text", 1e6, 1e4, {network: 1}, "torch")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    built = Machine()
    FakeWorker.machine = built

    def run_many(workers: Any, messages: list[Any], limit_s: float) -> Iterator[tuple[int, dict[str, Any]]]:
        for index, message in enumerate(messages):
            yield index, built.answer(message)

    for place in (collection, collector, torch_collector):
        monkeypatch.setattr(place, "Worker", FakeWorker)
    monkeypatch.setattr(disturbance, "load_of_others", lambda: built.load)
    monkeypatch.setattr(collector, "ReferenceKernels", CalmReferenceKernels)
    monkeypatch.setattr(collector, "build_reference_kernels", lambda *_: [])
    for place in (collection, subjects, window):
        monkeypatch.setattr(place, "run_many", run_many)
    monkeypatch.setattr(subjects, "arguments_of", lambda workload: [[[4], "float32"]])
    return built


def settings(**changes: Any) -> MeasureSettings:
    given = {"zoo": {"a": {}, "b": {}}, "schedules_per_task": 3, "batch": 6, "min_separation_s": 0.0, **changes}
    return MeasureSettings(**{"device": "xeon-icelake", "progress": False, **given})


ALL = 2 * (3 * 3 + 2)
"""Programs of two networks with 3 conv2d tasks of 3 schedules and 2 elementwise tasks of 1."""
