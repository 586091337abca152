"""A model folder becomes a predictor: found by path or name, its versions and parts checked."""

from __future__ import annotations

import difflib
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from cdmpp.ast.layout import KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.devices import VECTOR_WIDTH
from cdmpp.errors import CdmppError, ModelFormatError
from cdmpp.machine_code.cpu.code_features import CODE_WIDTH
from cdmpp.model.build import Model, build_model
from cdmpp.model.config import CdmppConfig, EagerConfig, ModelConfig, model_config
from cdmpp.model.eager_inputs import N_INPUTS
from cdmpp.model.ranker import Ranker
from cdmpp.platform.limits import checked
from cdmpp.platform.torch_state import usual_torch
from cdmpp.predict.catalogue import SHIPPED, state_of
from cdmpp.predict.predictor import Predictor
from cdmpp.predict.stored_config import CARD, CONFIG, WEIGHTS, StoredConfig, read_config, read_object
from cdmpp.predict.stored_tensors import read_weights

_SMALL = 2**28
"""Values of all members that may be allocated before its weights are known to be there."""


@checked()
def load(path_or_name: str | Path) -> Predictor:
    """Load a predictor from a model folder, or a shipped one by name.

    ``ModelFormatError`` names what is missing, damaged, impossible or of another version: model, file or field.
    """
    folder = find_model(path_or_name)
    stored = read_config(folder)
    card = read_object(folder / CARD) if (folder / CARD).exists() else {}
    with usual_torch():  # they begin with random weights, and answer in another mode than that of the caller
        models = _built(stored)
        ranker = Ranker().eval().requires_grad_(False) if stored.ranker else None
        calibration = read_weights(folder / WEIGHTS, models, stored, ranker)
        known = (stored.log_shift, stored.calibrated, stored.unseen, ranker, stored.power_states)
        return Predictor(models, stored.devices, card, stored.features, calibration, *known)


def shared(path_or_name: str | Path) -> Predictor:
    """Load a predictor that nobody may change, once while its files stay the same; errors as of ``load``."""
    folder = find_model(path_or_name)
    return _shared(folder, (folder.absolute(), *state_of(folder)))


@lru_cache(maxsize=4)
def _shared(folder: Path, _: tuple[Any, ...]) -> Predictor:
    return load(folder)


def pretrained_names() -> list[str]:
    """Return the names of the models that ship with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def find_model(path_or_name: str | Path) -> Path:
    """Find the folder of a model; ``ModelFormatError`` where there is none."""
    if "\0" not in str(path_or_name):
        for folder in (Path(path_or_name), SHIPPED / str(path_or_name)):
            if (folder / CONFIG).is_file():
                return folder
    names = pretrained_names()
    near = difflib.get_close_matches(str(path_or_name), names, n=3) or names
    raise ModelFormatError(
        f"{path_or_name} is neither a model folder (no {CONFIG} in it) nor a shipped model; "
        f"shipped: {', '.join(near) or 'none'}. `cdmpp model train device=...` makes one"
    )


def _built(stored: StoredConfig) -> list[Model]:
    """The members with the shapes to be expected; large ones without memory, which takes torch seconds to prepare."""
    models = []
    for i, member in enumerate(stored.members):
        try:
            config = model_config(member)
            with torch.device("cpu" if _is_small(config, len(stored.members)) else "meta"):
                models.append(build_model(config, LEAF_WIDTH, KERNEL_WIDTH, VECTOR_WIDTH))
        except CdmppError as error:
            raise ModelFormatError(f"{stored.file}: members[{i}]: {error}; copy or train the model again") from error
    return models


def _is_small(config: ModelConfig, members: int) -> bool:
    """True if it is small, by a bound, every layer as wide as the widest; the reference model holds many networks."""
    if isinstance(config, EagerConfig):  # built on the device meta it would import sympy
        values = config.layers * (N_INPUTS * (1 + config.bins) + config.hidden) * config.hidden
        return members * (values + 1000 * config.device_costs) < _SMALL
    if not isinstance(config, CdmppConfig):
        return False
    inputs = LEAF_WIDTH + (1 + config.bins) * KERNEL_WIDTH + CODE_WIDTH + VECTOR_WIDTH
    widest = max(config.width, config.feedforward, config.hidden)
    values = 12 * (config.layers + 8) * widest**2 + 8 * inputs * widest + 1000 * config.device_costs
    return members * values < _SMALL
