"""Network key: what identifies a network that was read before, so that the cache may answer for it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from cdmpp.devices import Device
from cdmpp.devices.cores import core_key
from cdmpp.network.source.checkpoint import cached_config
from cdmpp.platform.paths import conf_folder

_TVM = "apache-tvm"
_PACKAGES = ("torch", "torchvision", "transformers", "onnx", _TVM)
_READERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "torchvision:": (("torch", "torchvision", _TVM), ()),
    "hf:": (("torch", "transformers", _TVM), ("checkpoints",)),
}
"""Beginning of a name -> the packages that read such a network, and the shipped lists that tell of it."""
_BUILD = re.compile(r"\+(cpu|cu\d+|rocm[\d.]+|xpu)$")
"""Builds of torch for other accelerators read the same graphs: they differ in their kernels."""


def name_key(network: Any) -> list[str] | None:
    """Return the name and file that identify the network; None where none do: a file of Python may do anything."""
    if not isinstance(network, str | Path) or ".py:" in (text := str(network)):
        return None
    name = text.removeprefix("hf:")
    path = Path(name).expanduser()
    config = path / "config.json" if path.is_dir() else path
    if text.startswith("hf:") and not config.is_file():
        config = cached_config(name) or config
    return [text, hashlib.sha256(config.read_bytes()).hexdigest() if config.is_file() else ""]


def device_key(device: Device) -> str:
    """Return all that is known of a device, the same in every process: sets have no order of their own."""
    values = {one.name: getattr(device, one.name) for one in fields(device)}
    known = {name: sorted(own) if isinstance(own, frozenset) else own for name, own in values.items()}
    return repr({**known, "core": device.core and core_key(device.core)})


def digest(asked: Any) -> str:
    """Return a short name of plain values."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:24]


def surroundings(network: Any = None, by_tvm: bool = True) -> list[str]:
    """Return the versions of what reads a network, and of the shipped lists of them.

    Args:
        network: as in a ``Workload``; None: all that reads any.
        by_tvm: whether TVM reads it, too.
    """
    text = str(network) if isinstance(network, str | Path) else ""
    packages, lists = next((own for begin, own in _READERS.items() if text.startswith(begin)), (_PACKAGES, None))
    found = [digest for name, digest in _lists().items() if lists is None or name in lists]
    return [*found, *(version_of(one) for one in packages if by_tvm or one != _TVM)]


def toolchain() -> str:
    """Return what draws schedules and compiles programs: the version of TVM, which has its LLVM, and the system."""
    return f"tvm-{version_of(_TVM) or 'none'}-{sys.platform}-{platform.machine()}"


@cache
def version_of(package: str) -> str:
    """Return the version of an installed package, without what its accelerators are called; empty without it."""
    try:
        return _BUILD.sub("", importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def _lists() -> dict[str, str]:
    paths = sorted((conf_folder() / "data").glob("*.yaml"))
    return {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
