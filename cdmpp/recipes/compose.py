"""compose(...): a file of ``conf/`` over the defaults of the dataclasses and under the words of a command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cdmpp import devices
from cdmpp.errors import CdmppError
from cdmpp.model.config import MODELS
from cdmpp.platform.paths import conf_folder
from cdmpp.training.config import LossConfig, TrainerConfig, TuneConfig

GROUPS: dict[str, dict[str, type]] = {
    "model": dict(MODELS),
    "loss": {"hybrid": LossConfig},
    "trainer": {"default": TrainerConfig},
    "tuning": {"default": TuneConfig},
}
"""Group -> option -> the dataclass with its defaults; further options are files of the group's folder."""
CONFIG_ERRORS = (HydraException, OmegaConfBaseException)


def offer(kind: type, name: str, group: str | None = None) -> None:
    """Let a settings file take the defaults of a dataclass, by ``name`` or as an option of ``group``."""
    node = OmegaConf.structured(kind)
    OmegaConf.set_readonly(node, None)  # frozen dataclasses are, and nothing could be overridden
    ConfigStore.instance().store(group=group, name=name, node=node)


for _group, _options in GROUPS.items():
    for _name, _kind in _options.items():
        offer(_kind, _name, _group)


def compose(config: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Compose ``conf/<config>.yaml`` with ``overrides`` such as ``trainer.epochs=5``; errors as ``explained``."""
    GlobalHydra.instance().clear()  # a command itself runs inside Hydra
    try:
        with hydra.initialize_config_dir(str(conf_folder()), version_base="1.3"):
            return values_of(hydra.compose(config, overrides=[*overrides, *search_path()]))
    except CONFIG_ERRORS as error:
        raise explained(error) from error


def search_path() -> list[str]:
    """Return the word by which Hydra finds one's own devices: those in ``conf/device`` of the working folder."""
    own = Path("conf")
    elsewhere = (own / "device").is_dir() and not own.samefile(conf_folder())
    return ["hydra.searchpath=[file://conf]"] if elsewhere else []


def values_of(composed: DictConfig) -> dict[str, Any]:
    """Return plain values, interpolations resolved."""
    return OmegaConf.to_container(composed, resolve=True)  # type: ignore[return-value]


def explained(error: Exception) -> CdmppError:
    """Explain the fault that Hydra or OmegaConf found in one line: the key, what is near and what is allowed."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        if group == "device":
            try:
                devices.get(option)
            except CdmppError as unknown:
                return unknown
        return CdmppError(f"{group}={option} is unknown; {_nearest(option, error.options or ())}")
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException) and cause.key is not None:
        if isinstance(cause.parent_node, DictConfig) and cause.key not in cause.parent_node:
            return CdmppError(f"unknown setting {cause.full_key}; {_nearest(str(cause.key), cause.parent_node)}")
        return CdmppError(f"{cause.full_key}: {str(cause).splitlines()[0]}")
    return CdmppError(" ".join(str(error).split()))


def _nearest(name: str, allowed: Iterable[Any]) -> str:
    names = sorted(str(one) for one in allowed)
    near = difflib.get_close_matches(name, names, n=2)
    return (f"did you mean {' or '.join(near)}? " if near else "") + f"allowed: {', '.join(names)}"
