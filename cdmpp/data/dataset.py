"""LatencyDataset: labelled programs as arrays, aligned by index."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.ast.mapped_table import concat
from cdmpp.ast.table import AstTable
from cdmpp.data.labels import Labels
from cdmpp.errors import DataError
from cdmpp.platform.paths import cache_root
from cdmpp.programs.task import Task

_ARRAYS = tuple(Labels.__dataclass_fields__)


@dataclass(frozen=True)
class LatencyDataset(Labels):
    """Each of n programs has a label and an AST, at the same index in every array. ``task_ids`` are in ``tasks``."""

    asts: AstTable
    """n compact ASTs."""
    tasks: dict[str, Task]
    source: str
    """Folders it came from."""
    features: str = "cdmpp"
    """Kind of the leaf vectors, a name in ``layout.FEATURES``."""

    def __post_init__(self) -> None:
        n = len(self.asts)
        for name in _ARRAYS:
            if len(getattr(self, name)) != n:
                raise DataError(f"{name} has {len(getattr(self, name))} entries for {n} ASTs")

    def take(self, indices: Sequence[int] | np.ndarray) -> LatencyDataset:
        """Select the programs at ``indices`` (positions or a boolean mask), in that order."""
        index = np.asarray(indices)
        index = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64)
        arrays = {name: getattr(self, name)[index] for name in _ARRAYS}
        tasks = {task: self.tasks[task] for task in np.unique(arrays["task_ids"]).tolist()}
        return dataclasses.replace(self, **arrays, asts=self.asts.take(index), tasks=tasks)

    @property
    def op_classes(self) -> np.ndarray:
        """Each program has an operator class, (n,) str, see ``Task.op_class``."""
        return np.array([self.tasks[task].op_class for task in self.task_ids], dtype=str)


def join_datasets(parts: Sequence[LatencyDataset]) -> LatencyDataset:
    """Join the programs of all ``parts``, such as those of several devices; a shared task is one.

    ``DataError``: nothing to join, or leaf vectors of different kinds.
    """
    arrays = {name: np.concatenate([getattr(part, name) for part in parts] or [[]]) for name in _ARRAYS}
    return LatencyDataset(
        **arrays,
        features=one_kind(part.features for part in parts),
        asts=concat([part.asts for part in parts], cache_root() / "mapped"),
        tasks=join_tasks([part.tasks for part in parts]),
        source=", ".join(dict.fromkeys(part.source for part in parts)),
    )


def one_kind(features: Iterable[str]) -> str:
    """Return the kind of leaf vectors that all parts have; ``DataError`` where they differ."""
    kinds = sorted(set(features))
    if len(kinds) != 1:
        raise DataError(f"data sets of different features cannot be joined: {', '.join(kinds) or 'none given'}")
    return kinds[0]


def join_tasks(tables: Iterable[Mapping[str, Task]]) -> dict[str, Task]:
    """Join tables into one; a task that several hold belongs to the networks of all."""
    tasks: dict[str, Task] = {}
    for table in tables:
        for key, task in table.items():
            networks = {**(tasks[key].networks if key in tasks else {}), **task.networks}
            tasks[key] = dataclasses.replace(tasks.get(key, task), networks=networks)
    return tasks
