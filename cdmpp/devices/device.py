"""Device: public datasheet numbers of one processor, with a unit and a source per field. No TVM and no Hydra here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.devices.cores import Core, core_of_processor, get_core
from cdmpp.devices.launch_overheads import LaunchOverheads, read_launch_overheads
from cdmpp.devices.sheet import FIELDS, MEASURED, Quantity, nearest, read_quantity, read_sheet, sheet_files
from cdmpp.devices.sheet_check import check_range, check_sheet
from cdmpp.errors import CdmppError, UnknownDeviceError
from cdmpp.platform.content import read_yaml
from cdmpp.platform.limits import check_choice, check_fields, fitting
from cdmpp.platform.paths import conf_folder

KINDS = ("cpu", "gpu", "accelerator")

# Ceilings are round numbers above every device known today, so that adding a device never moves another one's vector.
_FIELDS = FIELDS["device"]
SPEC_FIELDS: tuple[str, ...] = tuple(_FIELDS)
_COSTS_ONLY = tuple(name for name, told in _FIELDS.items() if told.get("costs_only"))
VECTOR_FIELDS = tuple(name for name in SPEC_FIELDS if name not in _COSTS_ONLY)
"""Fields that enter the device vector; only the costs read the others."""
VECTOR_WIDTH = 2 * len(VECTOR_FIELDS) + len(KINDS)


@dataclass(frozen=True)
class Device:
    """A device is one processor as its public documents describe it."""

    name: str
    title: str
    kind: str
    """``cpu``, ``gpu`` or ``accelerator``."""
    target: dict[str, Any]
    """Arguments of ``tvm.target.Target``."""
    spec: Mapping[str, float | None]
    """One value per name in ``SPEC_FIELDS``, in the unit that the name ends in: the middle of a range, None where
    nothing is known."""
    sources: Mapping[str, str]
    """One text per name in ``SPEC_FIELDS``: the document that states the value, or why there is none."""
    core: str | None = None
    """The name of a CPU's microarchitecture, see ``cores``; None where that is not described."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """(low, high) of the numbers of which no more is known."""
    measured: frozenset[str] = frozenset()
    """Names of the numbers that were timed on the device instead of read."""
    launch_overheads: LaunchOverheads = field(default_factory=LaunchOverheads)
    """The times that a network takes on it apart from its kernels."""

    def __post_init__(self) -> None:
        check_fields(self, "device.")
        check_choice("device.kind", self.kind, KINDS)
        fitting("device.target.kind", self.target.get("kind"), str)
        if set(self.spec) != set(SPEC_FIELDS):
            raise CdmppError(f"device.spec: missing or unknown: {', '.join(sorted(set(self.spec) ^ set(SPEC_FIELDS)))}")
        for name, value in self.spec.items():
            if value is not None:
                check_range(self.kind, name, value)

    @property
    def architecture(self) -> str:
        """Return ``cpu``, or the architecture of a GPU as its compilers name it, such as ``sm_90``; else its kind."""
        if self.kind == "cpu":
            return "cpu"
        return str(self.target.get("arch") or self.target.get("mcpu") or self.target["kind"])

    def origin(self, name: str) -> str:
        """Say how a number is known: ``measured``, ``described``, ``range``, ``unknown`` or ``not applicable``."""
        if self.spec[name] is None:
            return "not applicable" if self.sources.get(name, "").startswith("not applicable") else "unknown"
        return "range" if name in self.ranges else "measured" if name in self.measured else "described"

    def with_spec(self, **values: float) -> Device:
        """Replace numbers; ``CdmppError`` for a name that no device has, or a number that cannot be."""
        for name, value in values.items():
            if name not in _FIELDS:
                raise CdmppError(f"{name}={value}: no device has it, expected one of {', '.join(SPEC_FIELDS)}")
            check_range(self.kind, name, fitting(name, value, float))
        ranges = {name: bounds for name, bounds in self.ranges.items() if name not in values}
        sources = {**self.sources, **dict.fromkeys(values, "given")}
        return replace(self, spec={**self.spec, **values}, sources=sources, ranges=ranges)

    def measured_as(self, values: Mapping[str, float]) -> Device:
        """Replace numbers by those that were timed on it."""
        timed = self.with_spec(**values)
        sources = {**self.sources, **dict.fromkeys(values, MEASURED)}
        return replace(timed, sources=sources, measured=self.measured | set(values))

    def vector(self) -> np.ndarray:
        """Describe the device for a model: (VECTOR_WIDTH,) float32, all finite.

        First one log-scaled value between about 0 and 1 per name in ``VECTOR_FIELDS`` (0 where unknown), then one mask
        each (1 = known), then a one-hot of the kind.
        """
        return self._vector.copy()

    @cached_property
    def _vector(self) -> np.ndarray:
        published = [self.spec[name] is not None for name in VECTOR_FIELDS]
        ceilings = [_FIELDS[name]["ceiling"] for name in VECTOR_FIELDS]
        numbers = zip(VECTOR_FIELDS, ceilings, strict=True)
        scaled = [math.log2(1 + (self.spec[name] or 0)) / math.log2(1 + most) for name, most in numbers]
        return np.array([*scaled, *published, *(self.kind == kind for kind in KINDS)], np.float32)


def names() -> tuple[str, ...]:
    """Return the names of all described devices, sorted."""
    return tuple(sorted(_files()))


def get(name: str) -> Device:
    """Return the device of that name.

    ``UnknownDeviceError`` names the nearest ones where there is none, ``CdmppError`` a malformed file and its field.
    """
    if (path := _files().get(name)) is None:
        raise UnknownDeviceError(_unknown(name))
    return read_device(path)


def named(content: Any) -> str:
    """Return the name in a composed ``device`` group; ``CdmppError`` where its file contradicts ``content``.

    Everything reads devices by their names: a number that is changed on a command line would change nothing.
    """
    name = content.get("name") if isinstance(content, dict) else content
    if not isinstance(name, str):
        raise UnknownDeviceError(f"device is {str(content)[:60]!r}: expected the name of a device, see `cdmpp devices`")
    if (path := _files().get(name)) is None:
        raise UnknownDeviceError(_unknown(name))
    if isinstance(content, dict) and content != _content(path):
        raise CdmppError(f"device.KEY=VALUE changes nothing: describe another device in a file, as {path} is")
    return name


@cache
def _content(path: Path) -> Any:
    return read_yaml(path)


def all_devices() -> tuple[Device, ...]:
    """Return every described device, sorted by name."""
    return tuple(get(name) for name in names())


def sheets_of(occurring: Iterable[str]) -> dict[str, Device]:
    """Return the devices that occur in a sequence of names, by name, sorted."""
    return {name: get(name) for name in sorted({str(name) for name in occurring})}


@cache
def read_device(path: Path) -> Device:
    """Read and check one device file; ``CdmppError`` names it and the field that cannot be."""
    content = read_sheet(path, {"name", "title", "kind", "target", "documents", "spec", "core?", "network?"})
    if content["kind"] not in KINDS:
        raise CdmppError(f"{path}: field kind is {content['kind']!r}, expected one of {', '.join(KINDS)}")
    if not isinstance(content["target"], dict) or "kind" not in content["target"]:
        raise CdmppError(f"{path}: field target must be a mapping with a kind, as tvm.target.Target takes it")
    documents, spec, core = content["documents"], content["spec"], _core_of(content)
    inherited = dict.fromkeys(_COSTS_ONLY, Quantity(None, None, "not published", "unknown"))
    inherited |= _of_core(get_core(core)) if core else {}
    if not isinstance(spec, dict) or not set(SPEC_FIELDS) - set(inherited) <= set(spec) <= set(SPEC_FIELDS):
        given = set(spec) | set(inherited) if isinstance(spec, dict) else set()
        raise CdmppError(f"{path}: spec must be a mapping; missing or unknown: {sorted(set(SPEC_FIELDS) ^ given)}")
    own = {name: read_quantity(path, f"spec.{name}", spec[name], _FIELDS[name]["unit"], documents) for name in spec}
    numbers = {**inherited, **{name: q for name, q in own.items() if q.value is not None or name not in inherited}}
    if content["kind"] == "cpu" and numbers["clock_mhz"].value is None:
        raise CdmppError(
            f"{path}: field spec.clock_mhz is null, and every answer for a CPU hangs on it: give what one busy "
            "core runs at (`cdmpp data probe` tells it there), or the range of the series as [low, high]"
        )
    check_sheet(path, content["kind"], content["target"], numbers)
    return Device(
        content["name"],
        str(content["title"]),
        content["kind"],
        content["target"],
        spec={name: numbers[name].value for name in SPEC_FIELDS},
        sources={name: numbers[name].source for name in SPEC_FIELDS},
        core=core,
        ranges={name: q.bounds for name in SPEC_FIELDS if (q := numbers[name]).bounds},
        measured=frozenset(name for name, number in numbers.items() if number.origin == MEASURED),
        launch_overheads=read_launch_overheads(path, content.get("network"), documents),
    )


def _core_of(content: Mapping[str, Any]) -> str | None:
    """The core that a device file names, or the one that LLVM's name of its processor stands for."""
    named = content.get("core")
    return named if named or content["kind"] != "cpu" else core_of_processor(str(content["target"].get("mcpu")))


def _of_core(core: Core) -> dict[str, Quantity]:
    """Fields of a device that are its core's."""
    add, _ = core.units["fadd"]
    source = f"conf/core/{core.name}.yaml"
    latency = Quantity(float(add.latency), float(add.latency), source, "described")
    shared = {name: q for name, q in core.numbers.items() if name in SPEC_FIELDS}
    told = {name: replace(q, source=f"{source}: {q.source}") for name, q in shared.items()}
    return {**told, "add_latency_cycles": latency}


def _files() -> dict[str, Path]:
    """Name -> description. Devices of one's own are described in ``conf/device`` of the working folder."""
    return sheet_files("device")


def _unknown(name: str) -> str:
    hint, readme = nearest(name, names()), conf_folder() / "device" / "README.md"
    return f"unknown device {name!r}; {hint} (`cdmpp devices` lists all, {readme} tells how to add one)"
