"""Which tasks are measured, in which order: kept in the data set folder, so that a rerun continues the same list."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.data.files import read_json, write_json
from cdmpp.data.records import read_tasks, write_tasks
from cdmpp.programs.task import Task

PLAN_FILE = "plan.json"


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
) -> Plan:
    """Plan of ``folder``, extended by the networks of ``zoo`` that it does not have yet.

    ``import_tasks(name, spec)`` returns the tasks of a network, or None where it cannot be imported (tried again on
    the next run). Networks join one by one, so a kill loses one import at most.
    """
    path = folder / PLAN_FILE
    known = read_json(path) if path.exists() else {"order": [], "networks": []}
    new = [name for name in zoo if name not in known["networks"]]
    imported: dict[str, list[str]] = {}
    for name in new:
        tasks = import_tasks(name, zoo[name])
        if tasks is None:
            continue
        write_tasks(folder, tasks)
        imported[name] = [task.task_id for task in tasks]
    if imported:
        order = known["order"] + interleave(imported, set(known["order"]), seed)
        known = {"order": order, "networks": known["networks"] + list(imported), "seed": seed}
        write_json(path, known)
    return Plan(known["order"], known["networks"], read_tasks(folder))


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
