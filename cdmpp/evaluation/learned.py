"""Settings of models that are trained, by name: the same configs as those of ``cdmpp train``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from cdmpp.errors import DataError
from cdmpp.evaluation.baselines import BASELINES
from cdmpp.paths import conf_folder
from cdmpp.training.config import TrainConfig

DEFAULT_MODEL = "cdmpp"


def train_config(
    model: str, overrides: Sequence[str] = (), variants: Mapping[str, Sequence[str]] | None = None
) -> TrainConfig:
    """The default for ``cdmpp``, ``variants`` of it by name, else a file of ``conf/model`` or ``conf/experiment``.

    ``overrides`` are Hydra overrides of the groups ``model``, ``loss``, ``trainer`` for every trained model;
    ``NAME:override`` is for one.
    """
    folder = conf_folder()
    known: dict[str, Sequence[str]] = {
        path.stem: [f"{group}={path.stem}"]
        for group in ("model", "experiment")
        for path in sorted((folder / group).glob("*.yaml"))
    }
    known |= {**(variants or {}), DEFAULT_MODEL: []}
    if model not in known:
        names = ", ".join((*BASELINES, *sorted(known)))
        raise DataError(f"unknown model {model!r}; known: {names}, and means of them such as xgb_ours+cdmpp")
    chosen = list(known[model])
    for override in overrides:
        owner, _, rest = override.partition(":")
        if not rest or "=" in owner:
            chosen.append(override)
        elif owner == model:
            chosen.append(rest)
    GlobalHydra.instance().clear()  # an evaluation itself runs inside Hydra
    with initialize_config_dir(str(folder), version_base="1.3"):
        composed = compose("config", overrides=chosen)
    groups = {name: OmegaConf.to_container(composed[name], resolve=True) for name in ("model", "loss", "trainer")}
    return TrainConfig.from_dict(groups)
