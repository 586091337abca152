"""``config.json`` of a model folder: every field checked before anything is built from it. No torch here."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import reprlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.ast.layout import FEATURES, KERNEL_WIDTH, LEAF_WIDTH
from cdmpp.devices import KINDS, SPEC_FIELDS, VECTOR_FIELDS, VECTOR_WIDTH, Device
from cdmpp.errors import DataError, ModelFormatError
from cdmpp.machine_code.cpu.code_features import CODE_VERSION
from cdmpp.machine_code.gpu.gpu_code_features import GPU_CODE_VERSION
from cdmpp.platform.content import content_of, parse_json
from cdmpp.uncertainty.unseen import Unseen
from cdmpp.version import __version__

log = logging.getLogger(__name__)
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "card.json"
MAX_MEMBERS = 64
SHEET = ("title", "kind", "target", "spec", "core")  # what is stored of a device
FORMAT = {"format_version": 3, "leaf_width": LEAF_WIDTH, "kernel_width": KERNEL_WIDTH, "device_width": VECTOR_WIDTH}
"""The numbers of the format that every model of this version is made for."""
_READABLE: dict[str, tuple[str | int, ...]] = {
    "extractor_version": tuple(FEATURES.values()),
    "code_version": (CODE_VERSION, GPU_CODE_VERSION),
    **{name: (value,) for name, value in FORMAT.items()},
}
SHA256 = "weights_sha256"
"""Key of a configuration: the SHA-256 of the weights that were saved with it, as hexadecimal digits."""
CONFIG_SHA256 = "config_sha256"
"""Key of a configuration: ``sum_of`` it."""
CALIBRATIONS = ("calibration", "calibration_without_code")
"""Keys of a configuration: that of answers with the machine code that the model reads comes first."""
_SUMS = (SHA256, CONFIG_SHA256)
_OPTIONAL = {"cdmpp_version", "code_version", "log_shift", *CALIBRATIONS, "calibrated", "ranker", "unseen",
             "power_states", *_SUMS}  # fmt: skip
_NEEDED = [*(name for name in _READABLE if name not in _OPTIONAL), "members", "devices"]
AGAIN = "copy or train the model again"
_SUM = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class StoredConfig:
    """This is the content of ``config.json``, apart from what only building the model can tell."""

    file: Path
    features: str
    members: tuple[Mapping[str, Any], ...]
    """Settings of each, all of the same kind of model."""
    devices: dict[str, Device]
    log_shift: float
    calibrations: Mapping[str, Mapping[str, Any]]
    """The ``CALIBRATIONS`` that there are: ``groups`` (the first is the empty one) and ``levels`` (rising)."""
    calibrated: tuple[str, ...] = ()
    """Devices that the model was scaled to without being trained on them."""
    unseen: Unseen | None = None
    ranker: bool = False
    """True if a ranker is among the weights."""
    power_states: Mapping[str, float] = field(default_factory=dict)
    """Device -> see ``Predictor.power_states``."""
    weights_sha256: str | None = None
    """The checksum of the file of weights; None in folders of versions that stored none."""


def read_object(path: Path) -> dict[str, Any]:
    """Read the mapping in a JSON file of a model folder; ``ModelFormatError`` names the file."""
    try:
        content = parse_json(content_of(path))
    except ValueError as error:
        raise ModelFormatError(f"{path} is not readable JSON ({error}); {AGAIN}") from error
    if not isinstance(content, dict):
        raise ModelFormatError(f"{path} holds a JSON {type(content).__name__} and not a mapping; {AGAIN}")
    return content


def sum_of(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all other fields of ``config``, as JSON with sorted keys: in hexadecimal digits."""
    rest = {name: value for name, value in config.items() if name != CONFIG_SHA256}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def other_version(folder: Path, config: Mapping[str, Any]) -> str:
    """Say why this version of the package cannot read the model in ``folder``; empty where it can."""
    for name, readable in _READABLE.items():
        if (value := config.get(name, readable[0])) not in readable:
            return (
                f"{folder} has {name.replace('_', ' ')} {str(value)[:60]} and this cdmpp {__version__} reads "
                f"{' or '.join(map(str, readable))}. Train again with `cdmpp model train`, or install "
                f"cdmpp {config.get('cdmpp_version') or 'of that version'}"
            )
    return ""


def read_config(folder: Path) -> StoredConfig:
    """Read and check ``config.json``; ``ModelFormatError`` names another version, or the file and a wrong field.

    It names the file, too, where its fields are not those that were saved; without their checksum they are read with a
    warning.
    """
    file = folder / CONFIG
    config = read_object(file)
    if reason := other_version(folder, config):
        raise ModelFormatError(reason)
    if missing := [name for name in _NEEDED if name not in config]:
        raise ModelFormatError(f"{file} lacks {', '.join(missing)}; {AGAIN}")
    if unknown := sorted(set(config) - {*_NEEDED} - _OPTIONAL):
        raise ModelFormatError(f"{file} holds {', '.join(unknown)}, which nothing reads; {AGAIN}")
    absent: dict[str, Any] = {
        "log_shift": 0.0,
        **dict.fromkeys(CALIBRATIONS),
        "calibrated": [],
        "ranker": False,
        "unseen": None,
        "power_states": {},
        **dict.fromkeys(_SUMS),
    }
    told = config.get(CONFIG_SHA256)
    changed = told is not None and told != sum_of(config)
    config = absent | config
    for place, value, holds, expected in _rules(config):
        if not holds:
            raise ModelFormatError(f"{file}: {place} is {reprlib.repr(value)}, expected {expected}; {AGAIN}")
    if changed:
        raise ModelFormatError(f"{file} was changed by hand or is broken ({CONFIG_SHA256}); {AGAIN}")
    if told is None:
        log.warning("%s has no %s, so changed settings are not noticed: save the model again", file, CONFIG_SHA256)
    devices = {}
    for name, device in config["devices"].items():
        spec = {number: device["spec"].get(number) for number in SPEC_FIELDS}
        about = (device["title"], device["kind"], device["target"])
        devices[name] = Device(name, *about, spec, sources={}, core=device["core"])
    features = next(name for name, version in FEATURES.items() if version == config["extractor_version"])
    try:
        unseen = None if config["unseen"] is None else Unseen.restore(config["unseen"])
    except DataError as error:
        raise ModelFormatError(f"{file}: unseen: {error}; {AGAIN}") from error
    members, log_shift = tuple(config["members"]), float(config["log_shift"])
    stored = {name: config[name] for name in CALIBRATIONS if config[name] is not None}
    rest = stored, tuple(config["calibrated"]), unseen, config["ranker"], config["power_states"], config[SHA256]
    return StoredConfig(file, features, members, devices, log_shift, *rest)


def _rules(config: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool, str]]:
    """Field, its value, whether it can be, what is expected. A rule relies on those before it."""
    log_shift, members, devices = config["log_shift"], config["members"], config["devices"]
    yield "log_shift", log_shift, _is_number(log_shift), "a finite number"
    some = isinstance(members, list) and 1 <= len(members) <= MAX_MEMBERS
    yield "members", members, some, f"a list of 1 to {MAX_MEMBERS} models"
    for i, member in enumerate(members):
        yield f"members[{i}]", member, isinstance(member, dict), "a mapping of settings"
        name, first = member.get("name"), members[0].get("name")
        yield f"members[{i}].name", name, name == first, f"{first!r} as members[0]"
    yield "devices", devices, isinstance(devices, dict) and bool(devices), "a mapping of at least one device by name"
    for name, device in devices.items():
        where = f"devices.{name}"
        complete = bool(name) and isinstance(device, dict) and set(device) == set(SHEET)
        yield where, device, complete, "a name with a mapping of title, kind, target, spec and core"
        kind, target, spec = device["kind"], device["target"], device["spec"]
        yield f"{where}.title", device["title"], isinstance(device["title"], str), "a text"
        yield f"{where}.kind", kind, kind in KINDS, f"one of {', '.join(KINDS)}"
        core = device["core"]
        yield f"{where}.core", core, core is None or isinstance(core, str), "the name of a core or null"
        usable = isinstance(target, dict) and isinstance(target.get("kind"), str)
        yield f"{where}.target", target, usable, "a mapping with a kind, as tvm.target.Target takes it"
        given = set(spec) if isinstance(spec, dict) else set()
        # A number that only code costs read may be younger than the model.
        odd = sorted((set(VECTOR_FIELDS) - given) | (given - set(SPEC_FIELDS)))
        yield f"{where}.spec", spec, not odd, f"the numbers of a device; missing or unknown: {', '.join(odd)}"
        for number, value in spec.items():
            fits = value is None or (_is_number(value) and value > 0)
            yield f"{where}.spec.{number}", value, fits, "a positive finite number or null"
    scaled = config["calibrated"]
    usable = isinstance(scaled, list) and all(name in devices for name in scaled)
    yield "calibrated", scaled, usable, "a list of names among the devices"
    yield "ranker", config["ranker"], isinstance(config["ranker"], bool), "true or false"
    unseen = config["unseen"]
    yield "unseen", unseen, unseen is None or isinstance(unseen, dict), "null or a mapping of units and bounds"
    states = config["power_states"]
    usable = isinstance(states, dict) and all(name in devices for name in states)
    yield "power_states", states, usable, "a mapping of names among the devices"
    for name, share in states.items():
        yield f"power_states.{name}", share, _is_number(share) and 0 < share <= 1, "a number above 0, at most 1"
    for name in _SUMS:
        is_sum = config[name] is None or (isinstance(config[name], str) and _SUM.fullmatch(config[name]))
        yield name, config[name], bool(is_sum), "64 hexadecimal digits or null"
    for name in CALIBRATIONS:
        yield from _rules_of_calibration(name, config[name])
    both = [config[name]["levels"] for name in CALIBRATIONS if config[name] is not None]
    alone = config[CALIBRATIONS[0]] is None and bool(both)
    agree = not alone and all(levels == both[0] for levels in both)
    yield CALIBRATIONS[1], config[CALIBRATIONS[1]], agree, f"null, or the levels of {CALIBRATIONS[0]}"


def _rules_of_calibration(name: str, calibration: Any) -> Iterator[tuple[str, Any, bool, str]]:
    if calibration is None:
        return
    complete = isinstance(calibration, dict) and set(calibration) == {"groups", "levels"}
    yield name, calibration, complete, "null or a mapping of groups and levels"
    groups, levels = calibration["groups"], calibration["levels"]
    texts = isinstance(groups, list) and all(isinstance(group, str) for group in groups) and groups[:1] == [""]
    distinct = texts and len(set(groups)) == len(groups)
    yield f"{name}.groups", groups, distinct, "distinct names, the first of them empty"
    shares = isinstance(levels, list) and all(_is_number(level) and 0 < level < 1 for level in levels)
    rising = shares and bool(levels) and sorted(set(levels)) == levels
    yield f"{name}.levels", levels, rising, "rising numbers between 0 and 1"


def _is_number(value: Any) -> bool:
    """Finite as a float, too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
