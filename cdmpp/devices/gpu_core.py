"""GpuCore: one multiprocessor of an NVIDIA architecture, as its documents and published timings describe it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from cdmpp.devices.sheet import Quantity, read_numbers, read_sheet
from cdmpp.errors import CdmppError
from cdmpp.platform.paths import conf_folder


@dataclass(frozen=True)
class GpuCore:
    """A GPU core is one architecture."""

    name: str
    title: str
    archs: tuple[int, ...]
    """75 of ``sm_75``."""
    numbers: Mapping[str, Quantity]
    """One a name in ``FIELDS["gpu_core"]`` of ``sheet``."""

    def scaled(self, **factors: float) -> GpuCore:
        """Multiply some numbers."""
        new = {name: self[name] * factor for name, factor in factors.items()}
        changed = {name: Quantity(value, value, "derived: scaled", "described") for name, value in new.items()}
        return replace(self, numbers={**self.numbers, **changed})

    def __getitem__(self, name: str) -> float:
        """One of ``numbers``; of a range the middle."""
        value = self.numbers[name].value
        assert value is not None  # checked on reading
        return value


def gpu_core_of(arch: int) -> GpuCore:
    """Return the core of ``sm_arch``; ``CdmppError`` names those that are described, or a malformed field."""
    cores = _by_arch()
    if f"sm_{arch}" not in cores:
        where = conf_folder() / "gpu_core"
        raise CdmppError(f"no core of sm_{arch} is described in {where}; there are {', '.join(cores)}")
    return cores[f"sm_{arch}"]


def described_archs() -> tuple[str, ...]:
    """Return the described architectures: ``sm_80`` and the like."""
    return tuple(_by_arch())


@cache
def _by_arch() -> dict[str, GpuCore]:
    cores = [read_gpu_core(path) for path in sorted((conf_folder() / "gpu_core").glob("*.yaml"))]
    return {f"sm_{arch}": core for core in cores for arch in core.archs}


@cache
def read_gpu_core(path: Path) -> GpuCore:
    """Read and check one file; ``CdmppError`` names it and the field that cannot be."""
    content = read_sheet(path, {"name", "title", "archs", "documents", "numbers"})
    archs = content["archs"]
    if not isinstance(archs, list) or not all(type(arch) is int for arch in archs):
        raise CdmppError(f"{path}: archs must be a list of numbers, such as [80]")
    numbers = read_numbers(path, content, "gpu_core", zero="reserved_shared_bytes")
    return GpuCore(content["name"], str(content["title"]), tuple(archs), numbers)
