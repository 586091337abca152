"""``config.json`` of a model folder: every field checked before anything is built from it. No torch here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp import __version__
from cdmpp.ast.layout import FEATURES, KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.devices import KINDS, SPEC_FIELDS, VECTOR_FIELDS, VECTOR_WIDTH, Device
from cdmpp.errors import ModelFormatError
from cdmpp.machine_code.code_features import CODE_VERSION

FORMAT_VERSION = 2
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "card.json"
MAX_MEMBERS = 64
_READABLE = {
    "format_version": (FORMAT_VERSION,),
    "extractor_version": tuple(FEATURES.values()),
    "code_version": (CODE_VERSION,),
    "leaf_width": (LEAF_WIDTH,),
    "kernel_width": (KERNEL_WIDTH,),
    "device_width": (VECTOR_WIDTH,),
}
"""What a model may have been made for: anything else would be misread."""
_OPTIONAL = {"cdmpp_version", "code_version", "log_shift", "calibration"}
_NEEDED = [*(name for name in _READABLE if name not in _OPTIONAL), "members", "devices"]
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
    for name, readable in _READABLE.items():
        if (value := config.get(name, readable[0])) not in readable:
            return (
                f"{folder} has {name.replace('_', ' ')} {str(value)[:60]} and this cdmpp {__version__} reads "
                f"{' or '.join(map(str, readable))}. Train again with `cdmpp train`, or install "
                f"cdmpp {config.get('cdmpp_version') or 'of that version'}"
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
    if unknown := sorted(set(config) - {*_NEEDED} - _OPTIONAL):
        raise ModelFormatError(f"{file} holds {', '.join(unknown)}, which nothing reads; {_AGAIN}")
    devices, log_shift, calibration = config["devices"], config.get("log_shift", 0.0), config.get("calibration")
    _require(_is_number(log_shift), file, "log_shift", log_shift, "a finite number")
    at_least_one = isinstance(devices, dict) and bool(devices)
    _require(at_least_one, file, "devices", devices, "a mapping of at least one device by name")
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


def _require(holds: bool, file: Path, field: str, value: Any, expected: str) -> None:
    if not holds:
        raise wrong(file, field, value, expected)


def _members(file: Path, members: Any) -> tuple[Mapping[str, Any], ...]:
    some = isinstance(members, list) and 1 <= len(members) <= MAX_MEMBERS
    _require(some, file, "members", members, f"a list of 1 to {MAX_MEMBERS} models")
    for i, member in enumerate(members):
        _require(isinstance(member, dict), file, f"members[{i}]", member, "a mapping of settings")
        name, first = member.get("name"), members[0].get("name")
        _require(name == first, file, f"members[{i}].name", name, f"{first!r} as members[0]")
    return tuple(members)


def _device(file: Path, name: str, values: Any) -> Device:
    where = f"devices.{name}"
    complete = isinstance(values, dict) and set(values) == {"title", "kind", "target", "spec"}
    _require(complete, file, where, values, "a mapping of title, kind, target and spec")
    title, kind, target, spec = values["title"], values["kind"], values["target"], values["spec"]
    _require(bool(name) and isinstance(title, str), file, f"{where}.title", title, "a text, and a name before it")
    _require(kind in KINDS, file, f"{where}.kind", kind, f"one of {', '.join(KINDS)}")
    usable = isinstance(target, dict) and isinstance(target.get("kind"), str)
    _require(usable, file, f"{where}.target", target, "a mapping with a kind, as tvm.target.Target takes it")
    given = set(spec) if isinstance(spec, dict) else set()
    # A number that only code costs read may be younger than the model.
    if odd := sorted((set(VECTOR_FIELDS) - given) | (given - set(SPEC_FIELDS))):
        raise ModelFormatError(f"{file}: {where}.spec: missing or unknown: {', '.join(odd)}; {_AGAIN}")
    for field, value in spec.items():
        fits = value is None or (_is_number(value) and value > 0)
        _require(fits, file, f"{where}.spec.{field}", value, "a positive finite number or null")
    return Device(name, title, kind, target, {field: spec.get(field) for field in SPEC_FIELDS}, {})


def _calibration(file: Path, settings: Any) -> Mapping[str, Any]:
    complete = isinstance(settings, dict) and set(settings) == {"groups", "levels"}
    _require(complete, file, "calibration", settings, "null or a mapping of groups and levels")
    groups, levels = settings["groups"], settings["levels"]
    texts = isinstance(groups, list) and all(isinstance(group, str) for group in groups) and groups[:1] == [""]
    distinct = texts and len(set(groups)) == len(groups)
    _require(distinct, file, "calibration.groups", groups, "distinct names, the first of them empty")
    shares = isinstance(levels, list) and all(_is_number(level) and 0 < level < 1 for level in levels)
    rising = shares and bool(levels) and sorted(set(levels)) == levels
    _require(rising, file, "calibration.levels", levels, "rising numbers between 0 and 1")
    return settings


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:  # an int beyond every float
        return False
