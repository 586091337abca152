"""Which tasks are measured, in which order: kept in the data set folder, so that a rerun continues the same list."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.data.files import PLAN_FILE, read_json, write_json
from cdmpp.data.records import read_records, read_tasks, write_tasks
from cdmpp.errors import DataError
from cdmpp.programs.task import Task


@dataclass
class Plan:
    """Tasks in measuring order and the networks they came from."""

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
    """Plan of ``folder``, extended by the networks of ``zoo`` that it does not have yet.

    ``import_tasks(name, spec)`` returns the tasks of a network, or None where it cannot be imported (tried again on
    the next run). Where networks join, the tasks that are not ``begun`` are shuffled anew among all networks.
    """
    path = folder / PLAN_FILE
    plan = _stored(path)
    imported = []
    for name in zoo:
        if name in plan["networks"] or (network_tasks := import_tasks(name, zoo[name])) is None:
            continue
        write_tasks(folder, network_tasks)
        imported.append(name)
    tasks = read_tasks(folder)
    if imported:
        names = [*plan["networks"], *imported]
        order = [task_id for task_id in plan["order"] if task_id in begun]
        order += interleave(_by_network(tasks, set(tasks) - set(order), names), set(order), seed)
        plan = {"order": order, "networks": names, "seed": seed}
        write_json(path, plan)
    return Plan(plan["order"], plan["networks"], tasks)


def copy_plan(folder: Path, source: Path, seed: int) -> Plan:
    """Plan of ``folder``, extended by the tasks that were measured in the data set ``source``.

    Raises:
        DataError: ``source`` holds no records.
    """
    path = folder / PLAN_FILE
    plan = _stored(path)
    measured = {record.task_id for record in read_records(source)}
    if not measured:
        raise DataError(f"tasks_from={source} holds no records, so no tasks to share: measure there first")
    tasks = read_tasks(source)
    networks = _by_network(tasks, measured - set(plan["order"]))
    if networks:
        write_tasks(folder, [tasks[task_id] for task_id in measured])
        order = plan["order"] + interleave(networks, set(plan["order"]), seed)
        plan = {"order": order, "networks": sorted({*plan["networks"], *networks}), "seed": seed}
        write_json(path, plan)
    return Plan(plan["order"], plan["networks"], read_tasks(folder))


def add_tasks(folder: Path, tasks: Sequence[Task]) -> None:
    """Put ``tasks`` into the plan of ``folder``, behind those that it has: a run with an empty zoo measures them.

    Their networks do not count as imported: a later run over the zoo still takes them in whole.
    """
    path = folder / PLAN_FILE
    plan = _stored(path)
    new = [task for task in tasks if task.task_id not in plan["order"]]
    if new:
        write_tasks(folder, new)
        write_json(path, {**plan, "order": [*plan["order"], *(task.task_id for task in new)]})


def _stored(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {"order": [], "networks": []}


def _by_network(
    tasks: Mapping[str, Task], chosen: Iterable[str], names: Iterable[str] | None = None
) -> dict[str, list[str]]:
    """Network -> its tasks among ``chosen``, for the networks of ``names`` (None: all)."""
    wanted = None if names is None else set(names)
    networks: dict[str, list[str]] = {}
    for task_id in sorted(chosen):
        for name in tasks[task_id].networks:
            if wanted is None or name in wanted:
                networks.setdefault(name, []).append(task_id)
    return networks


def interleave(tasks: Mapping[str, Iterable[str]], taken: set[str], seed: int) -> list[str]:
    """One task of each network in turn, each network's in random order, every task once."""
    shuffle = random.Random(seed)
    queues = []
    for name in sorted(tasks):
        queue = list(tasks[name])
        shuffle.shuffle(queue)
        queues.append(queue)
    order: list[str] = []
    seen = set(taken)
    while any(queues):
        for queue in queues:
            while queue:
                task_id = queue.pop()
                if task_id not in seen:
                    seen.add(task_id)
                    order.append(task_id)
                    break
    return order


def schedule_seed(task_id: str, seed: int) -> int:
    """Sampling seed of one task: the same in every run, different from task to task."""
    return int(hashlib.sha256(f"{task_id}:{seed}".encode()).hexdigest()[:7], 16)
