"""``config.json`` of a model folder: every field checked before anything is built from it. No torch here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp import __version__
from cdmpp.ast.layout import EXTRACTOR_VERSION, FEATURES, KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.devices import KINDS, SPEC_FIELDS, VECTOR_FIELDS, VECTOR_WIDTH, Device
from cdmpp.errors import ModelFormatError
from cdmpp.machine_code.code_vector import CODE_VERSION

FORMAT_VERSION = 2
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "card.json"
MAX_MEMBERS = 64
_WIDTHS = {"leaf_width": LEAF_WIDTH, "kernel_width": KERNEL_WIDTH, "device_width": VECTOR_WIDTH}
_NEEDED = ("format_version", "extractor_version", *_WIDTHS, "members", "devices")
_OPTIONAL = ("cdmpp_version", "code_version", "log_shift", "calibration")
_AGAIN = "copy or train the model again"


@dataclass(frozen=True)
class StoredConfig:
    """What ``config.json`` says, apart from what only building the model can tell."""

    file: Path
    features: str
    """Kind of leaf vectors, see ``layout.FEATURES``."""
    members: tuple[Mapping[str, Any], ...]
    """Settings of each member, all of the same kind of model."""
    devices: dict[str, Device]
    log_shift: float
    calibration: Mapping[str, Any] | None
    """``groups`` (the first is the empty one) and ``levels`` (rising)."""


def read_object(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file of a model folder; ``ModelFormatError`` names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path} is not readable JSON ({error}); {_AGAIN}") from error
    if not isinstance(content, dict):
        raise ModelFormatError(f"{path} holds a JSON {type(content).__name__} and not a mapping; {_AGAIN}")
    return content


def other_version(folder: Path, config: Mapping[str, Any]) -> str:
    """Why this version of the package cannot read the model in ``folder``; empty where it can."""
    made_by = config.get("cdmpp_version")
    if config.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
        return (
            f"{folder} has model format {config['format_version']}; this cdmpp {__version__} reads {FORMAT_VERSION}. "
            f"Install cdmpp {made_by or 'of that format'} or train again"
        )
    if config.get("extractor_version", EXTRACTOR_VERSION) not in FEATURES.values():
        return (
            f"{folder} was trained on ASTs of extractor version {config['extractor_version']} and would misread those "
            f"of this cdmpp {__version__}, version {EXTRACTOR_VERSION}. Train again with scripts/train.py, or install "
            f"cdmpp {made_by or 'of that version'}"
        )
    if config.get("code_version", CODE_VERSION) != CODE_VERSION:
        return (
            f"{folder} reads code vectors of version {config['code_version']}, this cdmpp {__version__} makes version "
            f"{CODE_VERSION}. Train again with scripts/train.py"
        )
    widths = tuple(config.get(name, ours) for name, ours in _WIDTHS.items())
    if widths != tuple(_WIDTHS.values()):
        return (
            f"{folder} expects leaf, kernel and device vectors of widths {widths}; this cdmpp {__version__} makes "
            f"{tuple(_WIDTHS.values())}. Train again with scripts/train.py"
        )
    return ""


def read_config(folder: Path) -> StoredConfig:
    """Read and check ``config.json``.

    Raises:
        ModelFormatError: another version, or a field that is missing, unknown or impossible; the message names the
            file and the field.
    """
    file = folder / CONFIG
    config = read_object(file)
    if reason := other_version(folder, config):
        raise ModelFormatError(reason)
    if missing := [name for name in _NEEDED if name not in config]:
        raise ModelFormatError(f"{file} lacks {', '.join(missing)}; {_AGAIN}")
    if unknown := sorted(set(config) - {*_NEEDED, *_OPTIONAL}):
        raise ModelFormatError(f"{file} holds {', '.join(unknown)}, which nothing reads; {_AGAIN}")
    log_shift = config.get("log_shift", 0.0)
    if not _is_number(log_shift):
        raise wrong(file, "log_shift", log_shift, "a finite number")
    devices, calibration = config["devices"], config.get("calibration")
    if not isinstance(devices, dict) or not devices:
        raise wrong(file, "devices", devices, "a mapping of at least one device by name")
    return StoredConfig(
        file,
        next(name for name, version in FEATURES.items() if version == config["extractor_version"]),
        _members(file, config["members"]),
        {name: _device(file, name, values) for name, values in devices.items()},
        float(log_shift),
        None if calibration is None else _calibration(file, calibration),
    )


def wrong(file: Path, field: str, value: Any, expected: str) -> ModelFormatError:
    """The error for a value that cannot be; long values are cut."""
    text = repr(value)
    return ModelFormatError(
        f"{file}: {field} is {text if len(text) <= 60 else text[:57] + '...'}, expected {expected}; {_AGAIN}"
    )


def _members(file: Path, members: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(members, list) or not 1 <= len(members) <= MAX_MEMBERS:
        raise wrong(file, "members", members, f"a list of 1 to {MAX_MEMBERS} models")
    for i, member in enumerate(members):
        if not isinstance(member, dict):
            raise wrong(file, f"members[{i}]", member, "a mapping of settings")
        if member.get("name") != members[0].get("name"):
            raise wrong(file, f"members[{i}].name", member.get("name"), f"{members[0].get('name')!r} as members[0]")
    return tuple(members)


def _device(file: Path, name: str, values: Any) -> Device:
    where = f"devices.{name}"
    if not isinstance(values, dict) or set(values) != {"title", "kind", "target", "spec"}:
        raise wrong(file, where, values, "a mapping of title, kind, target and spec")
    if not name or not isinstance(values["title"], str):
        raise wrong(file, f"{where}.title", values["title"], "a text, and a name before it")
    if values["kind"] not in KINDS:
        raise wrong(file, f"{where}.kind", values["kind"], f"one of {', '.join(KINDS)}")
    if not isinstance(values["target"], dict) or not isinstance(values["target"].get("kind"), str):
        raise wrong(file, f"{where}.target", values["target"], "a mapping with a kind, as tvm.target.Target takes it")
    spec = values["spec"]
    given = set(spec) if isinstance(spec, dict) else set()
    # A number that only code costs read may be younger than the model.
    if odd := sorted((set(VECTOR_FIELDS) - given) | (given - set(SPEC_FIELDS))):
        raise ModelFormatError(f"{file}: {where}.spec: missing or unknown: {', '.join(odd)}; {_AGAIN}")
    for field, value in spec.items():
        if value is not None and not (_is_number(value) and value > 0):
            raise wrong(file, f"{where}.spec.{field}", value, "a positive finite number or null")
    full = {field: spec.get(field) for field in SPEC_FIELDS}
    return Device(name, values["title"], values["kind"], values["target"], full, {})


def _calibration(file: Path, settings: Any) -> Mapping[str, Any]:
    if not isinstance(settings, dict) or set(settings) != {"groups", "levels"}:
        raise wrong(file, "calibration", settings, "null or a mapping of groups and levels")
    groups, levels = settings["groups"], settings["levels"]
    texts = isinstance(groups, list) and all(isinstance(group, str) for group in groups)
    if not texts or not groups or groups[0] != "" or len(set(groups)) < len(groups):
        raise wrong(file, "calibration.groups", groups, "distinct names, the first of them empty")
    numbers = isinstance(levels, list) and all(_is_number(level) and 0 < level < 1 for level in levels)
    if not numbers or not levels or sorted(set(levels)) != levels:
        raise wrong(file, "calibration.levels", levels, "rising numbers between 0 and 1")
    return settings


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:  # an int beyond every float
        return False
