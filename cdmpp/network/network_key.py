"""Network key: what identifies a network that was read before, so that the cache may answer for it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from cdmpp.devices import Device
from cdmpp.platform.paths import conf_folder

_PACKAGES = ("torch", "torchvision", "transformers", "onnx", "apache-tvm")


def name_key(network: Any) -> list[str] | None:
    """Return the name and file that identify the network; None where none do: a file of Python may do anything."""
    if not isinstance(network, str | Path) or ".py:" in (text := str(network)):
        return None
    path = Path(text.removeprefix("hf:")).expanduser()
    config = path / "config.json" if path.is_dir() else path
    return [text, hashlib.sha256(config.read_bytes()).hexdigest() if config.is_file() else ""]


def device_key(device: Device) -> str:
    """Return all that is known of a device, the same in every process: sets have no order of their own."""
    values = {one.name: getattr(device, one.name) for one in fields(device)}
    return repr({name: sorted(own) if isinstance(own, frozenset) else own for name, own in values.items()})


def digest(asked: Any) -> str:
    """Return a short name of plain values."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:24]


@cache
def surroundings() -> list[str]:
    """Return the versions of what reads networks, and of the shipped lists of them."""
    found = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((conf_folder() / "data").glob("*.yaml"))]
    for package in _PACKAGES:
        try:
            found.append(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            found.append("")
    return found
