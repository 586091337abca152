"""Core: one microarchitecture of a CPU as its public documents and timings describe it. No TVM and no Hydra here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cdmpp.devices.sheet import Quantity, read_quantity, read_sheet
from cdmpp.errors import CdmppError
from cdmpp.platform.paths import conf_folder

# name -> unit of what a core is described by.
NUMBERS: dict[str, str] = {
    "issue_width": "1",  # instructions that start in a cycle
    "window": "1",  # instructions that may be on the way
    "load_ports": "1",
    "load_bytes": "B",  # that a load port moves in a cycle: a wider load takes more of them
    "store_ports": "1",
    "store_bytes": "B",
    "store_bytes_per_cycle": "B",  # of all store ports together
    "load_latency": "cycle",  # of an integer from the first-level cache
    "vector_load_latency": "cycle",
    "forward_cycles": "cycle",  # from a store to a load of the same bytes
    "blocked_cycles": "cycle",  # to a load that needs more than one store holds
    "masked_forward_cycles": "cycle",  # from a masked store to a load of the same bytes
    "aliased_cycles": "cycle",  # that a load loses by a store underway 4 KiB off
    "masked_store_cycles": "cycle",  # that a masked vector store keeps its port
    "gather_cycles_per_lane": "cycle",  # from the first-level cache
    "scatter_cycles_per_lane": "cycle",
    "l1_ways": "1",
    "l1_sets": "1",
    "l2_ways": "1",
    "l2_sets": "1",
    "l2_cycles": "cycle",  # from a load that misses the first-level cache to its value
    "l2_bytes_per_cycle": "B",
    "l3_bytes_per_cycle": "B",  # of one core
    "tlb_entries": "1",  # of data pages, first level
    "l2_tlb_entries": "1",
}
_KEYS = {"name", "title", "vendor", "processors", "documents", "numbers", "operations_source", "operations"}
_MOST, _MOST_CYCLES = 2**24, 10_000
"""Limits of a core's numbers, and of one operation's cycles and slots: a simulated core has places for so many."""
_OPERATION_KEYS = {"ports", "latency", "busy", "slots", "wide_ports", "wide_busy", "wide_latency"}


@dataclass(frozen=True)
class Unit:
    """The part of a core that executes one operation."""

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
    """One microarchitecture."""

    name: str
    title: str
    vendor: str
    processors: tuple[str, ...]
    """LLVM's names of the CPUs with this core (``mcpu``)."""
    numbers: Mapping[str, Quantity]
    """One a name in ``NUMBERS``."""
    port_names: tuple[str, ...]
    units: Mapping[str, tuple[Unit, Unit]]
    """Name of an operation -> what executes it with registers of up to 256 bits, and of 512."""

    def __getitem__(self, name: str) -> float:
        """One of ``NUMBERS``; of a range the middle."""
        value = self.numbers[name].value
        assert value is not None  # checked on reading
        return value


def core_names() -> tuple[str, ...]:
    """The names of all described cores, sorted."""
    return tuple(sorted(_files()))


def get_core(name: str) -> Core:
    """The core of that name; ``CdmppError`` names the nearest where there is none, or a malformed file and field."""
    if (path := _files().get(name)) is None:
        near = difflib.get_close_matches(name, core_names(), n=3, cutoff=0.4) or core_names()
        raise CdmppError(f"unknown core {name!r}; nearest: {', '.join(near)} (files of {conf_folder() / 'core'})")
    return read_core(path)


@cache
def core_of_processor(mcpu: str) -> str | None:
    """Name of the core of what LLVM calls ``mcpu``; None where none is described."""
    return next((name for name in core_names() if mcpu in get_core(name).processors), None)


def _files() -> dict[str, Path]:
    """Name -> description; one's own in ``conf/core`` of the working folder are read too."""
    places = (Path("conf/core"), conf_folder() / "core")
    return {path.stem: path.resolve() for place in places for path in place.glob("*.yaml")}


@cache
def read_core(path: Path) -> Core:
    """Read and check one file; ``CdmppError`` names it and the field that cannot be."""
    content = read_sheet(path, _KEYS)
    if not isinstance(content["processors"], list):
        raise CdmppError(f"{path}: processors must be a list of LLVM's names, such as [znver4]")
    given, documents = content["numbers"], content["documents"]
    if not isinstance(given, dict) or set(given) != set(NUMBERS):
        wrong = sorted(set(NUMBERS) ^ set(given)) if isinstance(given, dict) else list(NUMBERS)
        raise CdmppError(f"{path}: numbers missing or unknown: {', '.join(wrong)}")
    numbers = {
        name: read_quantity(path, f"numbers.{name}", given[name], unit, documents) for name, unit in NUMBERS.items()
    }
    for name, quantity in numbers.items():
        if quantity.value is None:
            raise CdmppError(
                f"{path}: field numbers.{name} is null: give a number, or a range [low, high] that holds it"
            )
        if quantity.value > _MOST:
            raise CdmppError(f"{path}: field numbers.{name} is {quantity.value:g}: at most {_MOST:,}")
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
