"""GpuCore: one multiprocessor of an NVIDIA architecture, as its documents and published timings describe it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from cdmpp.devices.sheet import Quantity, read_quantity, read_sheet
from cdmpp.errors import CdmppError
from cdmpp.platform.paths import conf_folder

# name -> unit of what a multiprocessor is described by.
GPU_NUMBERS: dict[str, str] = {
    "schedulers": "1",  # each issues one instruction a cycle to its own warps
    "max_warps": "1",
    "max_blocks": "1",
    "registers": "1",  # of 32 bits
    "register_unit": "1",  # registers are given to a warp in so many
    "shared_bytes": "B",  # that blocks can have together
    "shared_unit": "B",  # shared memory is given to a block in so many
    "reserved_shared_bytes": "B",  # that the system takes of it in each block
    "fma_cycles": "cycle",  # that a warp's multiply-add keeps its pipe
    "alu_cycles": "cycle",  # the same of integers, comparisons, minima
    "special_cycles": "cycle",  # of reciprocals, exponentials, conversions
    "special_latency": "cycle",
    "shared_latency": "cycle",  # from a load of shared memory to its value
    "store_latency": "cycle",  # until a store has read its registers
    "l1_latency": "cycle",
    "l2_latency": "cycle",  # on a miss of the first-level cache
    "l1_sectors_per_cycle": "1",  # of 32 bytes, of a multiprocessor
    "l1_lines_per_cycle": "1",  # of 128 bytes, that one access looks up
    "l2_sectors_per_cycle": "1",  # that a multiprocessor gets
    "store_sectors_per_cycle": "1",  # that it sends there: the first-level cache is written through
    "merged_share": "1",  # how far halves of a warp that ask for the same words are served together: 1 is always
    "barrier_cycles": "cycle",
}


@dataclass(frozen=True)
class GpuCore:
    """One architecture."""

    name: str
    title: str
    archs: tuple[int, ...]
    """75 of ``sm_75``."""
    numbers: Mapping[str, Quantity]
    """One a name in ``GPU_NUMBERS``."""

    def scaled(self, **factors: float) -> GpuCore:
        """The same with some numbers multiplied."""
        new = {name: self[name] * factor for name, factor in factors.items()}
        changed = {name: Quantity(value, value, "derived: scaled", "described") for name, value in new.items()}
        return replace(self, numbers={**self.numbers, **changed})

    def __getitem__(self, name: str) -> float:
        """One of ``GPU_NUMBERS``; of a range the middle."""
        value = self.numbers[name].value
        assert value is not None  # checked on reading
        return value


def gpu_core_of(arch: int) -> GpuCore:
    """The core of ``sm_arch``; ``CdmppError`` names those that are described, or a malformed file and field."""
    cores = _by_arch()
    if f"sm_{arch}" not in cores:
        where = conf_folder() / "gpu_core"
        raise CdmppError(f"no core of sm_{arch} is described in {where}; there are {', '.join(cores)}")
    return cores[f"sm_{arch}"]


def described_archs() -> tuple[str, ...]:
    """``sm_80`` and the like."""
    return tuple(_by_arch())


@cache
def _by_arch() -> dict[str, GpuCore]:
    cores = [read_gpu_core(path) for path in sorted((conf_folder() / "gpu_core").glob("*.yaml"))]
    return {f"sm_{arch}": core for core in cores for arch in core.archs}


@cache
def read_gpu_core(path: Path) -> GpuCore:
    """Read and check one file; ``CdmppError`` names it and the field that cannot be."""
    content = read_sheet(path, {"name", "title", "archs", "documents", "numbers"})
    given, documents, archs = content["numbers"], content["documents"], content["archs"]
    if not isinstance(archs, list) or not all(type(arch) is int for arch in archs):
        raise CdmppError(f"{path}: archs must be a list of numbers, such as [80]")
    if not isinstance(given, dict) or set(given) != set(GPU_NUMBERS):
        wrong = sorted(set(GPU_NUMBERS) ^ set(given)) if isinstance(given, dict) else list(GPU_NUMBERS)
        raise CdmppError(f"{path}: numbers missing or unknown: {', '.join(wrong)}")
    numbers = {
        name: read_quantity(path, f"numbers.{name}", given[name], unit, documents, name == "reserved_shared_bytes")
        for name, unit in GPU_NUMBERS.items()
    }
    if lacking := [name for name, quantity in numbers.items() if quantity.value is None]:
        raise CdmppError(f"{path}: field numbers.{lacking[0]} is null: give a number, or a range [low, high]")
    return GpuCore(content["name"], str(content["title"]), tuple(archs), numbers)
