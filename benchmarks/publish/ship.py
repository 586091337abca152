"""The model of a finished cell becomes one that ships with the package, its test figures in its card.

``python -m benchmarks.publish.ship dataset=xeon-icelake cell=held_out/0/cdmpp out=outputs/evaluation``
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.publish.command_line import run
from cdmpp import devices
from cdmpp.data.sources import load_devices
from cdmpp.errors import DataError
from cdmpp.evaluation.cell import Cell
from cdmpp.platform.files import plain, read_json
from cdmpp.predict.catalogue import SHIPPED
from cdmpp.predict.model_folder import load
from cdmpp.predict.predictor import Predictor
from cdmpp.recipes.left_out import coverage_of, leave_cores_out, unseen_of
from cdmpp.training.config import Run, TrainConfig

MAX_MODEL_BYTES = 6_000_000
MAX_ALL_BYTES = 18 * 2**20
"""Most bytes of all shipped models: everybody who installs the package fetches them."""
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

LIBRARY_LIMITS = (
    "Knows calls that PyTorch serves by kernels of its own: float32 without TF32, halves as two Hopper GPUs ran them.",
    "Latencies are those of one eager call timed alone, the dispatch by its host included, caches warm.",
    "Inputs of all but the Hopper GPUs were mostly zeros, which draw less power; P4 and T4 throttled while measured.",
    "Convolutions of NeuSight's GPUs have labels set right at import: those as given grew along their files.",
    "For a device that is not listed it goes by the datasheet; `left_out` says how well that went for each that is.",
    "Figures under `test` hold for the split named there.",
)


def ship(
    out: Path,
    dataset: str,
    cell: Cell,
    name: str,
    folder: Path = SHIPPED,
    data: Sequence[Path] = (Path("datasets"),),
    left_out: bool = True,
) -> Path:
    """Copy the model of ``cell`` under the evaluation folder ``out`` to ``folder/name``, matrices in half precision.

    A model of several cores, or of library operators, learns what to expect of further devices: each is left out once,
    by the records in ``data``, unless ``left_out`` is false. Returns that folder.

    Raises:
        DataError: the cell or its model is not there, ``name`` is no plain name, or the model would make the package
            too large.
    """
    if not name or Path(name).name != name or name.startswith("."):
        raise DataError(f"{name!r} cannot name a shipped model: use letters, digits and dashes")
    predictor, result = load(_model(out, dataset, cell)), read_json(cell.path(out, dataset))
    limits = LIBRARY_LIMITS if predictor.features == "library" else LIMITS
    predictor.card |= {"test": _test(result), "limits": list(limits)}
    # Folders of the machine that trained it say nothing to others; their names do.
    places = (Path(part) for part in str(predictor.card.get("data", "")).split(", "))
    predictor.card["data"] = ", ".join(place.name if place.is_absolute() else str(place) for place in places)
    predictor.card["noise_floor_percent"] = result.get("noise", {})
    names = sorted(predictor.trained_on)
    several = len({devices.get(one).core for one in names} - {None}) > 1 or predictor.features == "library"
    if left_out and several:
        learn_left_out(predictor, data, Run(out / "left_out", progress=False))
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


def learn_left_out(predictor: Predictor, data: Sequence[Path], run: Run) -> None:
    """Train models without each unit of its devices, by the records in ``data``: what to expect of further devices."""
    names = sorted(predictor.trained_on)
    records = load_devices(names, tuple(data), features=predictor.features)
    found = leave_cores_out(records, names, TrainConfig.from_dict(predictor.card["training"]), run)
    predictor.unseen = unseen_of(found)
    blind = {unit: one.without_code for unit, one in found.items() if one.without_code is not None}
    held, held_blind = coverage_of({unit: one.errors for unit, one in found.items()}), coverage_of(blind)
    told = {unit: {**one.metrics, "intervals": held.get(unit, {})} for unit, one in found.items()}
    for unit, figures in held_blind.items():
        told[unit]["intervals_without_code"] = figures
    predictor.card["left_out"] = plain(told)


def _model(out: Path, dataset: str, cell: Cell) -> Path:
    model = cell.model_folder(out, dataset) / "model"
    for path in (cell.path(out, dataset), model / "config.json"):
        if not path.is_file():
            raise DataError(f"{path} is missing: run `cdmpp model evaluate` with that split, seed and model first")
    return model


def _test(result: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("dataset", "split", "seed", "n_programs", "n_tasks", "metrics", "by_op_class", "by_latency", "by_device",
            "by_device_and_class")  # fmt: skip
    return {
        key: result[key] for key in (*kept, "by_sets", "by_schedule", "intervals", "date", "command") if key in result
    }


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*")) if folder.is_dir() else 0


def main(dataset: str, cell: str, out: str, name: str | None, data: str, left_out: str) -> None:
    """Ship the model of ``cell`` of the data set, under its name or ``name``; ``data``: where its records lie."""
    folders, leave = [Path(data)], left_out == "true"
    print(ship(Path(out), dataset, Cell.parse(cell), name or dataset, data=folders, left_out=leave))


if __name__ == "__main__":
    run(
        main,
        dataset="???",
        cell="held_out/0/cdmpp",
        out="outputs/evaluation",
        name=None,
        data="datasets",
        left_out="true",
    )
