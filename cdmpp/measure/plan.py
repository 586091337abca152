"""Order of the tasks that are measured: kept in the data set folder, so that a rerun continues the same list."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.data.records import read_records, read_tasks, write_tasks
from cdmpp.errors import DataError
from cdmpp.platform.files import PLAN_FILE, read_json, write_json
from cdmpp.platform.limits import fitting
from cdmpp.programs.task import Task


@dataclass
class Plan:
    """A plan lists tasks in measuring order and the networks they came from."""

    order: list[str]
    networks: list[str]
    tasks: dict[str, Task]


def load_plan(
    folder: Path,
    zoo: Mapping[str, Mapping[str, Any]],
    seed: int,
    import_tasks: Callable[[str, Mapping[str, Any]], list[Task] | None],
    begun: Collection[str] = (),
) -> Plan:
    """Load the plan of ``folder``, extended by the networks of ``zoo`` that it does not have yet.

    ``import_tasks(name, spec)`` returns the tasks of a network, or None where it cannot be imported (tried again on
    the next run). Where networks join, the tasks that are not ``begun`` are shuffled anew among all networks.
    """
    order, networks = _stored(folder)
    imported = []
    for name in zoo:
        if name not in networks and (tasks_of_network := import_tasks(name, zoo[name])) is not None:
            write_tasks(folder, tasks_of_network)
            imported.append(name)
    tasks = read_tasks(folder)
    if imported:
        networks = [*networks, *imported]
        order = [task_id for task_id in order if task_id in begun]
        order += interleave(_by_network(tasks, set(tasks) - set(order), networks), seed)
        _store(folder, order, networks)
    return Plan(order, networks, tasks)


def copy_plan(folder: Path, source: Path, seed: int) -> Plan:
    """Load the plan of ``folder``, and add the tasks measured in data set ``source``; ``DataError`` if it has none."""
    order, networks = _stored(folder)
    measured = {record.task_id for record in read_records(source)}
    if not measured:
        raise DataError(f"tasks_from={source} holds no records, so no tasks to share: measure there first")
    tasks = read_tasks(source)
    if new := _by_network(tasks, measured - set(order)):
        write_tasks(folder, [tasks[task_id] for task_id in measured])
        order, networks = order + interleave(new, seed), sorted({*networks, *new})
        _store(folder, order, networks)
    return Plan(order, networks, read_tasks(folder))


def add_tasks(folder: Path, tasks: Sequence[Task]) -> None:
    """Put ``tasks`` into the plan of ``folder``, behind those that it has; their networks do not count as imported."""
    order, networks = _stored(folder)
    if new := [task for task in tasks if task.task_id not in order]:
        write_tasks(folder, new)
        _store(folder, [*order, *(task.task_id for task in new)], networks)


def _stored(folder: Path) -> tuple[list[str], list[str]]:
    path = folder / PLAN_FILE
    if not path.exists():
        return [], []
    plan = fitting(str(path), read_json(path), dict)
    order, networks = (fitting(f"{path}: {name}", plan.get(name, []), list[str]) for name in ("order", "networks"))
    return order, networks


def _store(folder: Path, order: list[str], networks: list[str]) -> None:
    write_json(folder / PLAN_FILE, {"order": order, "networks": networks})


def _by_network(
    tasks: Mapping[str, Task], chosen: Iterable[str], names: Collection[str] | None = None
) -> dict[str, list[str]]:
    """Network -> its tasks among ``chosen``, for the networks of ``names`` (None: all)."""
    networks: dict[str, list[str]] = {}
    for task_id in sorted(chosen):
        for name in tasks[task_id].networks:
            if names is None or name in names:
                networks.setdefault(name, []).append(task_id)
    return networks


def interleave(tasks: Mapping[str, Sequence[str]], seed: int) -> list[str]:
    """Take one task of each network in turn, each network's in random order, every task once."""
    shuffle = random.Random(seed)
    queues = [shuffle.sample(tasks[name], len(tasks[name])) for name in sorted(tasks)]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*queues))
    return list(dict.fromkeys(filter(None, turns)))


def schedule_seed(task_id: str, seed: int) -> int:
    """Return the sampling seed of one task: the same in every run, different from task to task."""
    return int(hashlib.sha256(f"{task_id}:{seed}".encode()).hexdigest()[:7], 16)
