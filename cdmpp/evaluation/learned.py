"""Models that are trained, as cells: the same configs and the same call as ``scripts/train.py``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from cdmpp.data.dataset import LatencyDataset
from cdmpp.data.splits import Split
from cdmpp.devices import sheets_of
from cdmpp.errors import DataError
from cdmpp.evaluation.baselines import BASELINES
from cdmpp.evaluation.cell import Cell, CellOptions
from cdmpp.evaluation.coverage import Forecast
from cdmpp.paths import conf_folder
from cdmpp.predict.rows import predict_rows_with_intervals
from cdmpp.training.config import TrainConfig

DEFAULT_MODEL = "cdmpp"


def train_config(model: str, overrides: Sequence[str] = ()) -> TrainConfig:
    """The default config for ``cdmpp``, else a file of ``conf/model``, ``conf/experiment`` or its ``ablation/``.

    ``overrides`` are Hydra overrides of the groups ``model``, ``loss``, ``trainer`` for every trained model;
    ``NAME:override`` is for one.
    """
    folder = conf_folder()
    known = {path.stem: f"{group}={path.stem}" for group in ("model", "experiment") for path in _files(folder / group)}
    known |= {path.stem: f"experiment=ablation/{path.stem}" for path in _files(folder / "experiment" / "ablation")}
    if model not in known:
        names = ", ".join((*BASELINES, *sorted(known)))
        raise DataError(f"unknown model {model!r}; known: {names}, and means of them such as xgb_ours+cdmpp")
    chosen = [] if model == DEFAULT_MODEL else [known[model]]
    for override in overrides:
        owner, _, rest = override.partition(":")
        if not rest or "=" in owner:
            chosen.append(override)
        elif owner == model:
            chosen.append(rest)
    GlobalHydra.instance().clear()  # evaluate.py itself runs inside Hydra
    with initialize_config_dir(str(folder), version_base="1.3"):
        composed = compose("config", overrides=chosen)
    groups = {name: OmegaConf.to_container(composed[name], resolve=True) for name in ("model", "loss", "trainer")}
    return TrainConfig.from_dict(groups)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.yaml"))


def train_and_predict(
    dataset: LatencyDataset, split: Split, cell: Cell, options: CellOptions, folder: Path
) -> Forecast:
    """Of the test programs, by a model trained into ``folder``."""
    from cdmpp.recipes.cross_calibration import calibrate_by_folds
    from cdmpp.training.fit import train

    config, sheets = train_config(cell.model, options.overrides), sheets_of(dataset.devices)
    fitted = train(dataset, split, sheets, config, folder, cell.seed, progress=False, accelerator=options.accelerator)
    calibrate_by_folds(fitted, dataset, split, config, cell.seed, options.accelerator)
    return Forecast(*predict_rows_with_intervals(fitted.predictor, dataset, split.test))
