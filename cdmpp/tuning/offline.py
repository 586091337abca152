"""A network tuned without a search: programs chosen by prediction, the most promising ones measured where wished."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp import devices
from cdmpp.devices import Device
from cdmpp.measure.build import arguments_of
from cdmpp.network.compiled.choice import Chosen
from cdmpp.network.compiled.measured import check_is_here
from cdmpp.network.compiled.rule import SCHEDULES
from cdmpp.network.compiled.runtime import CompiledRuntime
from cdmpp.network.compiled.worker import COMMAND
from cdmpp.network.graph import NetworkGraph
from cdmpp.network.workload import Workload
from cdmpp.platform.files import plain
from cdmpp.platform.limits import Limits, checked
from cdmpp.platform.progress import shown
from cdmpp.platform.workers import Worker
from cdmpp.programs.task import Task
from cdmpp.tuning.database import TuningDatabase

CANDIDATES = 256
"""Schedules that are sampled of each kernel."""
TRIALS = Limits(0, 10**6, "programs")
_LIMIT_S = 60.0
"""Longest seconds for building and timing one program."""


@dataclass(frozen=True)
class TunedKernel:
    """This is one task of a network and the best program of it that is known."""

    task_id: str
    op_name: str
    calls: int
    predicted_s: float
    """Seconds of the program that was predicted best."""
    measured_s: float | None
    """Seconds of the best measured program; None: nothing of this task was measured."""
    trials: int
    """Programs that were measured."""

    @property
    def latency_s(self) -> float:
        """The latency is measured where it was, else predicted."""
        return self.predicted_s if self.measured_s is None else self.measured_s


@dataclass(frozen=True)
class TunedNetwork:
    """The result of ``tune_network`` is a database in ``folder``, and what is in it."""

    network: str
    device: str
    folder: Path
    kernels: tuple[TunedKernel, ...]
    """The tasks, sorted by the time of all their calls, most first."""

    @property
    def kernels_s(self) -> float:
        """All calls of all kernels take so long, one by one."""
        return sum(kernel.calls * kernel.latency_s for kernel in self.kernels)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, as JSON takes them."""
        rows = [{**vars(kernel), "latency_s": kernel.latency_s} for kernel in self.kernels]
        told = {"network": self.network, "device": self.device, "folder": str(self.folder)}
        return plain({**told, "kernels_s": self.kernels_s, "kernels": rows})


@checked(trials=TRIALS, candidates=SCHEDULES)
def tune_network(
    workload: Workload,
    device: str | Device,
    folder: str | Path,
    model: str | Path | None = None,
    trials: int = 0,
    candidates: int = CANDIDATES,
    progress: bool = True,
) -> TunedNetwork:
    """Choose a program for each kernel of a network and write them as a MetaSchedule database. Needs TVM.

    Args:
        workload: the network and how it runs.
        device: what it is tuned for.
        folder: of the database. One that was begun goes on: what is measured in it is not measured again.
        model: folder or name of the model that predicts; None: the first for the device.
        trials: programs that are built and timed on this machine, which must be the device, the most promising ones
            of each kernel, more of those that take more of the network's time. 0: only prediction decides.
        candidates: schedules that are sampled of each kernel.
        progress: whether bars are shown on stderr.

    Raises:
        CdmppError: what ``predict_network`` raises; ``folder`` holds another database; the device is not here.
    """
    described = devices.get(device) if isinstance(device, str) else device
    if trials:
        check_is_here(described)
    runtime = CompiledRuntime(model, f"best_of:{candidates}")
    prepared = runtime.choose(runtime.read(workload, described), described, progress)
    graph, chosen = prepared.read.graph, prepared.chosen
    database = TuningDatabase.open(Path(folder), graph.tasks, described.target)
    database.predicted = {key: (one.schedule, one.latency_s) for key, one in chosen.items()}
    database.save()
    if trials:
        promising = prepared.chooser.shortlist(graph.tasks, shares(graph, chosen, trials), progress)
        _measure(database, promising, described, progress)
    return _tuned(graph, chosen, database, described)


def shares(graph: NetworkGraph, chosen: Mapping[str, Chosen], trials: int) -> dict[str, int]:
    """Deal trials: to each task by its share of the network's predicted time, at most one a candidate."""
    keys = list(graph.counts)
    weight = np.array([graph.counts[key] * chosen[key].latency_s for key in keys])
    most = np.array([chosen[key].candidates for key in keys])
    given = np.zeros(len(keys), int)
    for _ in range(min(trials, int(most.sum()))):
        given[int(np.argmax(np.where(given < most, weight / (given + 1), -1.0)))] += 1
    return {key: int(n) for key, n in zip(keys, given, strict=True)}


def _measure(
    database: TuningDatabase, promising: Mapping[str, Sequence[Chosen]], sheet: Device, progress: bool
) -> None:
    """Measure candidates that are not measured yet, the most promising of each task first; save after each."""
    waiting = [
        (rank, key, one.schedule)
        for key, found in promising.items()
        for rank, one in enumerate(found)
        if one.schedule not in database.measured.get(key, {})
    ]
    waiting.sort(key=lambda one: one[0])
    cores, threads = sorted(os.sched_getaffinity(0)), int(sheet.target.get("num-cores", 1))
    worker = Worker(COMMAND, cores[-threads:])

    def measured() -> Any:
        for _, key, schedule in waiting:
            seconds = _seconds(worker, database.tasks[key], schedule, sheet)
            database.measured.setdefault(key, {})[schedule] = () if seconds is None else (seconds,)
            database.save()
            yield key

    try:
        for _ in shown(measured(), "measuring", len(waiting), progress):
            pass
    finally:
        worker.stop()


def _seconds(worker: Worker, task: Task, schedule: str, sheet: Device) -> float | None:
    """Least of several runs, its data in cache; None: it does not build, or takes too long."""
    program = {"workload": task.workload, "schedule": schedule, "arguments": arguments_of(task.workload)}
    reply = worker.request({"op": "alone", "target": dict(sheet.target), "flush_bytes": 0, **program}, _LIMIT_S)
    seconds = reply.get("warm", math.nan)
    return float(seconds) if seconds > 0 else None


def _tuned(graph: NetworkGraph, chosen: Mapping[str, Chosen], database: TuningDatabase, sheet: Device) -> TunedNetwork:
    kernels = []
    for key, task in graph.tasks.items():
        each = database.measured.get(key, {})
        seconds = [min(one) for one in each.values() if one]
        kernels.append(
            TunedKernel(
                key, task.op_name, graph.counts[key], chosen[key].latency_s, min(seconds, default=None), len(each)
            )
        )
    kernels.sort(key=lambda kernel: -kernel.calls * kernel.latency_s)
    return TunedNetwork(graph.name, sheet.name, database.folder, tuple(kernels))
