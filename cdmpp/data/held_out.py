"""Choice of the names or programs that are held out or left away: by hash, equal programs together."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from cdmpp.errors import DataError

if TYPE_CHECKING:
    from cdmpp.data.dataset import LatencyDataset


def program_groups(dataset: LatencyDataset) -> np.ndarray:
    """Return the (n,) group of each program. Equal programs share one, so that none is on both sides.

    Equal means the same record id, or the same task and compact AST: traces that differ in text often lower to one
    program, and the same program may be measured on several devices.
    """
    asts, group_of = dataset.asts, dict[str | bytes, str]()
    groups = np.empty(len(dataset.record_ids), dtype=object)
    for i in np.argsort(np.asarray(dataset.record_ids), kind="stable"):
        leaves = slice(asts.leaf_offsets[i], asts.leaf_offsets[i + 1])
        kernels = slice(asts.kernel_offsets[i], asts.kernel_offsets[i + 1])
        digest = hashlib.blake2b(str(dataset.task_ids[i]).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(asts.leaf_features[leaves]).tobytes())
        digest.update(np.ascontiguousarray(asts.kernel_features[kernels]).tobytes())
        record, program = str(dataset.record_ids[i]), digest.digest()
        groups[i] = group_of.get(record) or group_of.get(program) or record
        group_of[record] = group_of[program] = groups[i]
    return groups.astype(str)


def hold_out(
    names: np.ndarray, fraction: float, seed: int, part: str, split: str, what: str, keep: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Take ``fraction`` of ``names`` (at least one) and leave at least ``keep``."""
    if not 0.0 < fraction < 1.0:
        raise DataError(f"split {split!r}: the {part} fraction must lie between 0 and 1, not {fraction}")
    if len(names) < keep + 1:
        raise DataError(f"split {split!r} needs at least {keep + 1} {what} to choose {part} from; found {len(names)}")
    count = min(max(1, round(fraction * len(names))), len(names) - keep)
    ordered = shuffled(names, seed, part)
    return ordered[:count], ordered[count:]


def shuffled(names: np.ndarray, seed: int, part: str) -> np.ndarray:
    """Order ``names`` by hashes: two of them stand the same way round whatever else there is."""
    keys = [hashlib.blake2b(f"{seed}/{part}/{name}".encode(), digest_size=8).digest() for name in names]
    return names[np.array(sorted(range(len(names)), key=keys.__getitem__), dtype=np.int64)]


def thinned(
    train: np.ndarray, dataset: LatencyDataset, seed: int, train_tasks: float, train_schedules: float
) -> np.ndarray:
    """Select those rows ``train`` of ``dataset`` that a smaller one would have had; a larger share holds a smaller one.

    ``train_tasks`` is the share of the tasks, each with all its programs; ``train_schedules`` that of each task's
    programs, at least one. ``DataError``: a share outside (0, 1].
    """
    task_ids, record_ids = np.asarray(dataset.task_ids), np.asarray(dataset.record_ids)
    for option, share in {"train_tasks": train_tasks, "train_schedules": train_schedules}.items():
        if not 0.0 < share <= 1.0:
            raise DataError(f"{option}={share}: a share of the training part lies above 0 and is at most 1")
    if train_tasks == train_schedules == 1.0:
        return train
    chosen = []
    for task in _share(np.unique(task_ids[train]), train_tasks, seed, "train_tasks"):
        of_task = train[task_ids[train] == task]
        names = _share(np.unique(record_ids[of_task]), train_schedules, seed, "train_schedules")
        chosen.append(of_task[np.isin(record_ids[of_task], names)])
    return np.sort(np.concatenate(chosen))


def _share(names: np.ndarray, share: float, seed: int, part: str) -> np.ndarray:
    return shuffled(names, seed, part)[: max(1, round(share * len(names)))]
