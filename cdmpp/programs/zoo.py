"""The zoo: the shipped networks by name, and their variants."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import yaml

from cdmpp.errors import CdmppError
from cdmpp.platform.paths import conf_folder
from cdmpp.programs.task import VARIANT_MARK


def read_zoo() -> dict[str, dict[str, Any]]:
    """Read the shipped zoo and expand it by ``expand_zoo``. ``CdmppError`` where it cannot be read."""
    path = conf_folder() / "data" / "networks.yaml"
    try:
        zoo = yaml.safe_load(path.read_text(encoding="utf-8"))["zoo"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise CdmppError(f"cannot read the networks of {path}: {error}") from error
    return expand_zoo(zoo)


def expand_zoo(zoo: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Make each variant an entry of its own, by network name: ``resnet50``, ``resnet50@b4`` ..."""
    expanded = {}
    for name, entry in zoo.items():
        spec = dict(entry)
        variants = spec.pop("variants", None) or {}
        expanded[str(name)] = spec
        for suffix, changes in variants.items():
            inputs = {**spec["input"], **changes}
            own = {key: inputs.pop(key) for key in ("dtype", "train") if key in inputs}
            expanded[f"{name}{VARIANT_MARK}{suffix}"] = {**spec, "input": inputs, **own}
    return expanded


def network_of(zoo: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the entry ``name`` of an expanded zoo; ``CdmppError`` where there is none."""
    if name not in zoo:
        near = ", ".join(difflib.get_close_matches(name, zoo, n=3) or sorted(zoo))
        raise CdmppError(f"network {name!r} is not in the zoo; nearest: {near} (conf/data/networks.yaml)")
    return zoo[name]
