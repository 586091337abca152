"""Core: one microarchitecture of a CPU as its public documents and timings describe it. No TVM and no Hydra here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cdmpp.devices.sheet import Quantity, nearest, read_numbers, read_sheet, sheet_files
from cdmpp.errors import CdmppError
from cdmpp.platform.paths import conf_folder

_KEYS = {"name", "title", "vendor", "processors", "documents", "numbers", "operations_source", "operations"}
_MOST_CYCLES = 10_000
"""Limit of one operation's cycles and slots: a simulated core has places for so many."""
_OPERATION_KEYS = {"ports", "latency", "busy", "slots", "wide_ports", "wide_busy", "wide_latency"}


@dataclass(frozen=True)
class Unit:
    """A unit is the part of a core that executes one operation."""

    ports: tuple[int, ...]
    """Any one of these; empty: none is needed."""
    latency: int
    """Cycles until the result can be used."""
    busy: int
    """Cycles that the port is taken."""
    slots: int
    """Slots of the core's width that the operation takes."""


@dataclass(frozen=True)
class Core:
    """A core is one microarchitecture."""

    name: str
    title: str
    vendor: str
    processors: tuple[str, ...]
    """LLVM's names of the CPUs with this core (``mcpu``)."""
    numbers: Mapping[str, Quantity]
    """One a name in ``FIELDS["core"]`` of ``sheet``."""
    port_names: tuple[str, ...]
    units: Mapping[str, tuple[Unit, Unit]]
    """Name of an operation -> what executes it with registers of up to 256 bits, and of 512."""

    def __getitem__(self, name: str) -> float:
        """One of ``numbers``; of a range the middle."""
        value = self.numbers[name].value
        assert value is not None  # checked on reading
        return value


def core_names() -> tuple[str, ...]:
    """Return the names of all described cores, sorted."""
    return tuple(sorted(sheet_files("core")))


def get_core(name: str) -> Core:
    """Return the core of that name; ``CdmppError`` names the nearest where there is none, or a malformed field."""
    if (path := sheet_files("core").get(name)) is None:
        raise CdmppError(f"unknown core {name!r}; {nearest(name, core_names())} (files of {conf_folder() / 'core'})")
    return read_core(path)


def core_key(name: str) -> str:
    """Return a core's name with a digest of all that machine code takes on it: two folders may describe one name."""
    core = get_core(name)
    numbers = {key: [one.value, one.bounds] for key, one in sorted(core.numbers.items())}
    told = repr([numbers, core.port_names, sorted(core.units.items())])
    return f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"


@cache
def core_of_processor(mcpu: str) -> str | None:
    """Return the name of the core of what LLVM calls ``mcpu``; None where none is described."""
    return next((name for name in core_names() if mcpu in get_core(name).processors), None)


@cache
def read_core(path: Path) -> Core:
    """Read and check one file; ``CdmppError`` names it and the field that cannot be."""
    content = read_sheet(path, _KEYS)
    if not isinstance(content["processors"], list):
        raise CdmppError(f"{path}: processors must be a list of LLVM's names, such as [znver4]")
    numbers = read_numbers(path, content, "core")
    operations = content["operations"]
    if not isinstance(operations, dict) or not operations:
        raise CdmppError(f"{path}: operations must be a mapping of names to ports, latency and the like")
    ports = tuple(sorted({port for entry in operations.values() for port in _ports(path, entry)}))
    units = {str(name): _units(path, str(name), entry, ports) for name, entry in operations.items()}
    titles = str(content["title"]), str(content["vendor"]), tuple(map(str, content["processors"]))
    return Core(content["name"], *titles, numbers, ports, units)


def _ports(path: Path, entry: Any) -> list[str]:
    if not isinstance(entry, dict) or not {"latency"} <= set(entry) <= _OPERATION_KEYS:
        raise CdmppError(f"{path}: an operation is a mapping of {sorted(_OPERATION_KEYS)}, latency at least: {entry}")
    return f"{entry.get('ports', '')} {entry.get('wide_ports', '')}".split()


def _units(path: Path, name: str, entry: Mapping[str, Any], ports: tuple[str, ...]) -> tuple[Unit, Unit]:
    numbers = {key: entry[key] for key in _OPERATION_KEYS - {"ports", "wide_ports"} if key in entry}
    for key, value in numbers.items():
        if type(value) is not int or not 0 <= value <= _MOST_CYCLES:
            told = f"field operations.{name}.{key} is {value!r}, expected a whole number of at least 0"
            raise CdmppError(f"{path}: {told} and at most {_MOST_CYCLES:,}")
    names = str(entry.get("ports") or "")
    wide_names = str(entry.get("wide_ports") or names)
    places, wide = (tuple(sorted(map(ports.index, text.split()))) for text in (names, wide_names))
    latency, busy, slots = entry["latency"], entry.get("busy", 1), entry.get("slots", 1)
    narrow_unit = Unit(places, latency, busy, slots)
    return narrow_unit, Unit(wide, entry.get("wide_latency", latency), entry.get("wide_busy", busy), slots)
