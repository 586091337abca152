"""The data of an evaluation as flat files, which other processes map: memory holds them once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from pathlib import Path

import numpy as np

from cdmpp.ast.table import AstTable
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.labels import Labels
from cdmpp.errors import DataError
from cdmpp.evaluation.evaluation_data import EvaluationData
from cdmpp.evaluation.noise import NoiseFloor
from cdmpp.platform.files import read_json, write_atomic, write_json
from cdmpp.programs.task import Task

_LABELS, _ASTS = (tuple(field.name for field in fields(kind)) for kind in (Labels, AstTable))
_ABOUT, _PER_STORE = "about.json", "per_store"


def write_data(data: EvaluationData, folder: Path) -> None:
    """Write ``data`` into ``folder``, a file an array."""
    dataset = data.dataset
    arrays: dict[str, np.ndarray | None] = {name: getattr(dataset, name) for name in _LABELS}
    arrays |= {name: getattr(dataset.asts, name) for name in _ASTS} | {_PER_STORE: data.per_store}
    for name, array in arrays.items():
        if array is not None:
            write_atomic(folder / f"{name}.npy", lambda path, array=array: _save(path, array))  # type: ignore[misc]
    write_json(folder / _ABOUT, {
        "tasks": {key: asdict(task) for key, task in dataset.tasks.items()}, "source": dataset.source,
        "features": dataset.features, "noise": {name: asdict(floor) for name, floor in data.noise.items()},
        "arrays": sorted(name for name, array in arrays.items() if array is not None),
    })  # fmt: skip


@lru_cache(maxsize=1)
def read_data(folder: Path) -> EvaluationData:
    """Map what ``write_data`` wrote; ``DataError`` where it is not there."""
    about = read_json(folder / _ABOUT)
    try:
        arrays: Mapping[str, np.ndarray] = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in about["arrays"]
        }
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: {error}") from error
    dataset = LatencyDataset(
        **{name: arrays[name] for name in _LABELS},
        asts=AstTable(**{name: arrays[name] for name in _ASTS if name in arrays}),
        tasks={key: Task(**task) for key, task in about["tasks"].items()},
        source=about["source"],
        features=about["features"],
    )
    noise = {name: NoiseFloor(**floor) for name, floor in about["noise"].items()}
    return EvaluationData(dataset, arrays.get(_PER_STORE), noise)


def _save(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, np.asarray(array), allow_pickle=False)
