"""Models that are trained, as cells: the same configs and the same call as ``scripts/train.py``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from cdmpp import devices
from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.errors import DataError
from cdmpp.evaluation.cell import Cell, CellOptions
from cdmpp.training.config import TrainConfig

DEFAULT_MODEL = "cdmpp"


def train_config(model: str, overrides: Sequence[str] = ()) -> TrainConfig:
    """The default config for ``cdmpp``; for another name the groups ``model``, ``loss``, ``trainer`` of that name.

    Groups without a file of that name keep their default. ``overrides`` are Hydra overrides of these groups.
    """
    folder = _conf_folder()
    chosen = []
    if model != DEFAULT_MODEL:
        if not (folder / "model" / f"{model}.yaml").is_file():
            known = sorted(path.stem for path in (folder / "model").glob("*.yaml"))
            raise DataError(f"unknown model {model!r}; trained models: {DEFAULT_MODEL}, {', '.join(known)}")
        groups = ("model", "loss", "trainer")
        chosen = [f"{group}={model}" for group in groups if (folder / group / f"{model}.yaml").is_file()]
    GlobalHydra.instance().clear()  # evaluate.py itself runs inside Hydra
    with initialize_config_dir(str(folder), version_base="1.3"):
        composed = compose("config", overrides=[*chosen, *overrides])
    groups_only = {name: OmegaConf.to_container(composed[name], resolve=True) for name in ("model", "loss", "trainer")}
    return TrainConfig.from_dict(groups_only)


def train_and_predict(
    dataset: LatencyDataset, split: Split, cell: Cell, options: CellOptions, folder: Path
) -> np.ndarray:
    """(m,) seconds of the test programs, by a model trained into ``folder``."""
    from cdmpp.training.fit import train

    names = np.asarray(dataset.devices)
    sheets = {str(name): devices.get(str(name)) for name in np.unique(names)}
    fitted = train(
        dataset,
        split,
        sheets,
        train_config(cell.model, options.overrides),
        folder,
        cell.seed,
        progress=False,
        accelerator=options.accelerator,
    )
    predicted = np.empty(len(split.test))
    for name in sheets:
        chosen = names[split.test] == name
        if chosen.any():
            programs = dataset.asts.take(split.test[chosen])
            predicted[chosen] = fitted.predictor.predict(programs, device=name).latency_s
    return predicted


def _conf_folder() -> Path:
    package = Path(__file__).parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
