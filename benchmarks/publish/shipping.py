"""The model of a finished cell becomes one that ships with the package, its test figures in its card."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cdmpp.data.files import read_json
from cdmpp.errors import DataError
from cdmpp.evaluation.cell import Cell
from cdmpp.evaluation.noise import NoiseFloor
from cdmpp.predict.catalogue import SHIPPED
from cdmpp.predict.model_folder import load

MAX_MODEL_BYTES = 6_000_000
MAX_ALL_BYTES = 15_000_000
"""Of all shipped models: everybody who installs the package fetches them."""
LIMITS = (
    "Knows programs that TVM lowered for the devices listed; for another device it goes by the datasheet alone.",
    "Latencies are those of repeated runs on fixed inputs (our own records: the shortest, imported ones: the middle): "
    "warm caches, nothing else on the device.",
    "Scaled for the least mean percentage error, so the middle answer is some percent below the middle measurement.",
    "Trained on float32 operators: of CPUs those of common vision, language and speech networks, of the A100 those of "
    "ResNet-34 and GoogLeNet alone; `unlike_training` of a prediction says where a program is far from them.",
    "Figures under `test` hold for the split named there. A few programs carry much of the mean error; the card of the "
    "data says which labels are in doubt.",
)


def devices_of(out: Path, dataset: str, cell: Cell) -> list[str]:
    """What the model of a finished cell was trained on; ``DataError`` where there is none."""
    return sorted(read_json(_model(out, dataset, cell) / "config.json")["devices"])


def ship(
    out: Path,
    dataset: str,
    cell: Cell,
    name: str,
    noise: Mapping[str, NoiseFloor] | None = None,
    folder: Path = SHIPPED,
) -> Path:
    """Copy the model of ``cell`` under the evaluation folder ``out`` to ``folder/name``, matrices in half precision.

    Returns that folder.

    ``noise``: of the labels, by device.

    Raises:
        DataError: the cell or its model is not there, ``name`` is no plain name, or the model would make the package
            too large.
    """
    if not name or Path(name).name != name or name.startswith("."):
        raise DataError(f"{name!r} cannot name a shipped model: use letters, digits and dashes")
    predictor = load(_model(out, dataset, cell))
    predictor.card |= {"test": _test(read_json(cell.path(out, dataset))), "limits": list(LIMITS)}
    # Folders of the machine that trained it say nothing to others; their names do.
    places = (Path(part) for part in str(predictor.card.get("data", "")).split(", "))
    predictor.card["data"] = ", ".join(place.name if place.is_absolute() else str(place) for place in places)
    predictor.card["noise_floor_percent"] = {device: _plain(asdict(floor)) for device, floor in (noise or {}).items()}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".ship-") as scratch:
        fresh = Path(scratch) / name
        predictor.save(fresh, half=True)
        size, others = _bytes(fresh), sum(_bytes(path.parent) for path in folder.glob("*/config.json"))
        others -= _bytes(folder / name)
        if size > MAX_MODEL_BYTES or size + others > MAX_ALL_BYTES:
            raise DataError(
                f"{name} has {size / 1e6:.1f} MB beside {others / 1e6:.1f} MB of other models; at most "
                f"{MAX_MODEL_BYTES / 1e6:g} MB each and {MAX_ALL_BYTES / 1e6:g} MB in all may ship: make it smaller"
            )
        if (folder / name).is_dir():
            (folder / name).rename(Path(scratch) / "older")
        fresh.rename(folder / name)
    return folder / name


def _model(out: Path, dataset: str, cell: Cell) -> Path:
    model = out / "models" / dataset / str(cell) / "model"
    for path in (cell.path(out, dataset), model / "config.json"):
        if not path.is_file():
            raise DataError(f"{path} is missing: run scripts/evaluate.py with that split, seed and model first")
    return model


def _test(result: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("dataset", "split", "seed", "n_programs", "n_tasks", "metrics", "by_op_class", "by_latency", "by_device")
    return {key: result[key] for key in (*kept, "intervals", "date", "command") if key in result}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """NaN, of devices without repeats, is null in JSON."""
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in values.items()}


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0
