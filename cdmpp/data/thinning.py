"""Less training data on purpose: what more tasks, or more schedules of each, are worth (learning curves)."""

from __future__ import annotations

import numpy as np

from cdmpp.data.held_out import shuffled
from cdmpp.errors import DataError

OPTIONS = ("train_tasks", "train_schedules")
"""Options that every split takes; validation, test and pool stay as they are."""


def thinned(
    train: np.ndarray,
    task_ids: np.ndarray,
    record_ids: np.ndarray,
    seed: int,
    train_tasks: float = 1.0,
    train_schedules: float = 1.0,
) -> np.ndarray:
    """Rows of ``train`` that a smaller data set would have had; a smaller share is contained in a larger one.

    Args:
        train: (m,) rows; ``task_ids`` and ``record_ids`` are those of all rows.
        train_tasks: share of the training tasks, each with all its programs.
        train_schedules: share of each training task's programs, at least one.

    Raises:
        DataError: a share outside (0, 1].
    """
    for option, share in zip(OPTIONS, (train_tasks, train_schedules), strict=True):
        if not 0.0 < share <= 1.0:
            raise DataError(f"{option}={share}: a share of the training part lies above 0 and is at most 1")
    tasks = np.unique(task_ids[train])
    kept = set(_first(tasks, train_tasks, seed, "train_tasks").tolist())
    chosen = []
    for task in sorted(kept):
        of_task = train[task_ids[train] == task]
        names = np.unique(record_ids[of_task])
        some = _first(names, train_schedules, seed, "train_schedules")
        chosen.append(of_task[np.isin(record_ids[of_task], some)])
    return np.sort(np.concatenate(chosen))


def _first(names: np.ndarray, share: float, seed: int, what: str) -> np.ndarray:
    if share >= 1.0:
        return names
    return shuffled(names, seed, what)[: max(1, round(share * len(names)))]
