"""Statistics of a data set for one device: for the data card, ``cdmpp data summary`` and the plots."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.data.records import read_records, read_tasks
from cdmpp.data.schema import Record
from cdmpp.errors import DataError
from cdmpp.platform.files import FAILURES_FILE, REPEATS_FILE, read_entries
from cdmpp.platform.limits import numbers
from cdmpp.programs.task import Task, network_family

NETWORK = "network:"  # before the name in the id of a failure that is a network's
_ENOUGH = 5  # schedules a task needs to say how far they spread


@dataclass(frozen=True)
class NoiseFloor:
    """The label of a program changes by so much when it is measured again an hour or more later."""

    programs: int
    hours_apart: float  # least time between the two measurements
    mean: float
    median: float
    p90: float
    drift: float  # median of again / first, minus 1


@dataclass(frozen=True)
class DeviceStatistics:
    """These numbers say what a data set holds for one device."""

    device: str
    programs: int
    tasks: int
    networks: int  # distinct networks; the input variants of one count once
    latency_s: np.ndarray  # (programs,)
    spread: np.ndarray  # (programs,) relative difference of the two best visits, see ``Record.spread``
    schedule_range: np.ndarray  # slowest over fastest schedule of each task with at least five
    best_over_typical: np.ndarray  # median over fastest schedule of the same tasks
    programs_by_class: dict[str, int]
    tasks_by_class: dict[str, int]
    programs_by_network: dict[str, dict[str, int]]
    """Network -> op class -> programs of its tasks; a task of several networks counts for each."""
    noise: NoiseFloor | None
    failures: dict[str, int]  # cause -> programs that could not be built or timed, tasks that could not be sampled

    def plain(self) -> dict[str, Any]:
        """Return the same for JSON: of an array its percentiles."""
        at = (1, 10, 50, 90, 99)
        numbers = {
            name: dict(zip([f"p{q}" for q in at], quantiles(value, at), strict=False))
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray)
        }
        return {**vars(self), **numbers, "noise": None if self.noise is None else vars(self.noise)}


_HOURS = numbers(0, 1e9)


def quantiles(values: np.ndarray, at: tuple[int, ...] = (10, 50, 90)) -> list[float]:
    """Compute percentiles of ``values``; empty where there are none."""
    return [float(value) for value in np.percentile(values, at)] if len(values) else []


def statistics(folder: Path) -> list[DeviceStatistics]:
    """Return one entry per device of a data set folder, by name.

    ``DataError``: the folder holds no records, or a record of a task that it does not describe.
    """
    records, tasks = read_records(folder), read_tasks(folder)
    if not records:
        raise DataError(f"{folder} holds no records: nothing to describe")
    if orphans := {record.task_id for record in records} - set(tasks):
        raise DataError(f"{folder}: {len(orphans)} tasks of its records are not in tasks.parquet")
    return [
        _of_device([r for r in records if r.device == device], tasks, device, folder)
        for device in sorted({record.device for record in records})
    ]


def _of_device(records: list[Record], tasks: dict[str, Task], device: str, folder: Path) -> DeviceStatistics:
    latencies: defaultdict[str, list[float]] = defaultdict(list)
    networks: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        task = tasks[record.task_id]
        latencies[task.task_id].append(record.latency_s)
        for network in task.networks:
            networks[network][task.op_class] += 1
    several = [np.array(values) for values in latencies.values() if len(values) >= _ENOUGH]
    by_class = Counter(tasks[record.task_id].op_class for record in records)
    lines = read_entries(folder / FAILURES_FILE, device)
    failures = Counter(entry["cause"] for entry in lines if not entry["id"].startswith(NETWORK))
    return DeviceStatistics(
        device=device,
        programs=len(records),
        tasks=len(latencies),
        networks=len({network_family(name) for name in networks}),
        latency_s=np.array([record.latency_s for record in records]),
        spread=np.array([record.spread for record in records]),
        schedule_range=np.array([values.max() / values.min() for values in several]),
        best_over_typical=np.array([np.median(values) / values.min() for values in several]),
        programs_by_class=dict(by_class.most_common()),
        tasks_by_class=dict(Counter(tasks[task].op_class for task in latencies).most_common()),
        programs_by_network={name: dict(networks[name]) for name in sorted(networks)},
        noise=noise_floor(folder, device),
        failures=dict(failures.most_common()),
    )


def noise_floor(folder: Path, device: str) -> NoiseFloor | None:
    """Compute the noise floor of programs in ``folder`` that were measured again on ``device``; None: none was."""
    entries = read_entries(path := folder / REPEATS_FILE, device, "again_s", "first_s")
    if not entries:
        return None
    ratio = np.array([entry["again_s"] / entry["first_s"] for entry in entries])
    change = np.abs(ratio - 1)
    hours = min(_HOURS.fitting(f"{path}: hours_apart", entry.get("hours_apart")) for entry in entries)
    told = change.mean(), np.median(change), np.percentile(change, 90), np.median(ratio) - 1
    return NoiseFloor(len(entries), hours, *map(float, told))
