"""Storage of what learners know, as one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cdmpp.errors import DataError
from cdmpp.platform.files import write_atomic
from cdmpp.tuning.learner import Learner

_FORMAT = "cdmpp-learned-1"


def write_learned(path: Path, learners: Mapping[str, Learner], origin: str, offsets: Mapping[str, float]) -> None:
    """Write learners of the model ``origin`` and the ``offsets`` of its scorer: they fit no other."""
    arrays: dict[str, np.ndarray] = {}
    tasks: dict[str, list[str]] = {}
    for name, learner in learners.items():
        arrays |= {f"{name}.features": learner.features, f"{name}.errors": learner.errors}
        tasks[name] = learner.tasks.tolist()
    about = {"format": _FORMAT, "origin": origin, "tasks": json.dumps(tasks), "anchors": json.dumps(dict(offsets))}
    data = save({key: np.ascontiguousarray(value) for key, value in arrays.items()}, about)
    write_atomic(path, lambda temporary: temporary.write_bytes(data))


def read_learned(path: Path, origin: str) -> tuple[dict[str, Learner], dict[str, float]]:
    """Read learners and offsets. ``DataError``: no such file, or learned with another model or device."""
    try:
        with safe_open(path, "numpy") as stored:
            about, arrays = stored.metadata() or {}, {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
        if about.get("format") != _FORMAT:
            raise DataError(f"{path} was not saved by a cost model: expected format {_FORMAT}")
        tasks = json.loads(about["tasks"])
        offsets = {str(task): float(value) for task, value in json.loads(about["anchors"]).items()}
        learners = {
            name: Learner(
                features=arrays[f"{name}.features"],
                errors=arrays[f"{name}.errors"],
                tasks=np.array(names, object),
            )
            for name, names in tasks.items()
        }
    except (OSError, SafetensorError, KeyError, ValueError, AttributeError) as error:
        raise DataError(f"{path} cannot be read as what a cost model learned: {error}") from error
    if about["origin"] != origin:
        raise DataError(f"{path} was learned beside {about['origin']}, this cost model is {origin}")
    return learners, offsets
