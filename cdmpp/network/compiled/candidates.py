"""Candidates: schedules of a task with their compact ASTs, sampled in worker processes and kept in the cache."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from cdmpp.ast.layout import EXTRACTOR_VERSION
from cdmpp.ast.table import AstTable, read_asts, write_asts
from cdmpp.data.derive import COMMAND, derived_folder
from cdmpp.data.derive_worker import unpacked
from cdmpp.devices import Device
from cdmpp.errors import CdmppError, DataError, some
from cdmpp.execute.executor import replies_of
from cdmpp.execute.work import Work
from cdmpp.measure.plan import schedule_seed
from cdmpp.network.network_key import toolchain
from cdmpp.platform.cache import bring, keep, note_use
from cdmpp.platform.cores import cores
from cdmpp.platform.progress import shown
from cdmpp.programs.task import Task

log = logging.getLogger(__name__)

LIMIT_S = 600.0
"""Longest seconds for sampling the schedules of one task: a GPU's take some seconds each."""
_SAMPLER = "2"
"""Goes up when the same seed draws other schedules."""


@dataclass(frozen=True)
class Candidates:
    """These are different programs of one task."""

    schedules: tuple[str, ...]
    """(n,) traces as JSON, or TVMScript of scheduled programs."""
    asts: AstTable
    """(n,) without code vectors."""


def candidates_of(
    tasks: Mapping[str, Task], device: Device, n: int, seed: int = 0, progress: bool = True
) -> dict[str, Candidates]:
    """Sample ``n`` schedules of each task for ``device``, or as many as there are; 0: only TVM's default.

    ``CdmppError`` names tasks of which no program can be made.
    """
    target = json.dumps(device.target, sort_keys=True)
    found: dict[str, Candidates] = {}
    missing: list[Task] = []
    for task_id, task in tasks.items():
        try:
            bring(path := candidates_path(task, target, n, seed))
            schedules, table = read_asts(path)
            note_use(path)
            found[task_id] = Candidates(tuple(schedules), table)
        except DataError:  # not there, or of another version
            missing.append(task)
    if missing:
        found |= _sampled(missing, device, target, n, seed, progress)
    return found


def _sampled(
    tasks: Sequence[Task], device: Device, text: str, n: int, seed: int, progress: bool
) -> dict[str, Candidates]:
    asked = {"op": "candidates", "target": dict(device.target), "n": n}
    # The heaviest first: what is left at the end is small.
    tasks = sorted(tasks, key=lambda task: -task.flops)
    requests = [{**asked, "task": asdict(t), "seed": schedule_seed(t.task_id, seed)} for t in tasks]
    work = Work(COMMAND, LIMIT_S, min(cores(), -(-len(tasks) // 2)))
    found, faults = dict[str, Candidates](), list[str]()
    title = f"sampling schedules for {device.name}" if n else "reading kernels"
    if n and not progress:
        pace = ", which takes some seconds each" if device.kind == "gpu" else ""
        log.info("%s: %d kernels%s; they are kept", title, len(tasks), pace)
    with (
        closing(replies_of(work, requests, len(tasks))) as replies,
        closing(shown(replies, title, len(tasks), progress)) as bar,
    ):
        for index, reply in bar:
            task = tasks[index]
            if "arrays" not in reply:
                faults.append(f"{task.op_name}: {reply.get('reason') or reply.get('cause')}")
                continue
            table = AstTable(**unpacked(reply["arrays"]))
            found[task.task_id] = Candidates(tuple(reply["schedules"]), table)
            path = candidates_path(task, text, n, seed)
            keep(path, partial(write_asts, path, reply["schedules"], table))
    if faults:
        raise CdmppError(f"no program can be made of {len(faults)} of {len(tasks)} kernels: {some(faults)}")
    return found


def candidates_path(task: Task, target: str, n: int, seed: int = 0) -> Path:
    """Return the place of a task's candidates in the cache; ``target`` is JSON with sorted keys."""
    version = f"{EXTRACTOR_VERSION}-{_SAMPLER}-{toolchain()}"
    return derived_folder("candidates", version, task.workload, target, str(n), str(seed)) / "asts.parquet"
