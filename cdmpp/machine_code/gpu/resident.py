"""Warps that live on one scheduler of a multiprocessor together, in time.

The scheduler issues one instruction a cycle: the first warp that may go on, the last one again where several may. What
a warp waits for is in the encoding: cycles to stall, and scoreboards that loads and the like set until they are done.
The four schedulers share the pipe to memory, so each gets its part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cdmpp.devices.gpu_core import GpuCore
from cdmpp.machine_code.gpu.launch import LANES, Launch
from cdmpp.machine_code.gpu.native import native_library
from cdmpp.machine_code.gpu.warp import TRACE


class Residents(NamedTuple):
    """These warps share a scheduler; the fields say how their accesses fare."""

    blocks: int
    """Blocks whose warps are on the scheduler."""
    warps: int
    """Warps of each of these blocks."""
    sharers: int
    """Schedulers that have warps: they share the pipe to memory."""
    missing: float
    """Share of first touches of a sector that go to the second-level cache: other warps of the block touched others."""


@dataclass(frozen=True)
class Timed:
    """All residents need so many cycles to their end, and these resources kept them busy."""

    cycles: float
    memory_cycles: float
    """Cycles of the pipe to memory."""
    l2_cycles: float
    """Cycles of the second-level cache."""


def cache_passes(core: GpuCore, sectors: Any, lines: Any) -> Any:
    """Count the cycles that accesses to so many ``sectors`` in so many ``lines`` keep the first cache."""
    return np.maximum(sectors / core["l1_sectors_per_cycle"], lines / core["l1_lines_per_cycle"])


_CORE_NUMBERS = (
    *("fma_cycles", "alu_cycles", "special_cycles", "special_latency", "shared_latency", "store_latency"),
    *("l1_latency", "l2_latency", "l1_sectors_per_cycle", "l1_lines_per_cycle", "l2_sectors_per_cycle"),
    *("store_sectors_per_cycle", "merged_share", "barrier_cycles"),
)
"""Numbers of a core that C++ reads, in the order of ``native/resident.h``."""


def run_residents(rows: np.ndarray, trace: np.ndarray, core: GpuCore, residents: Residents, most_issued: int) -> Timed:
    """Time ``residents`` that all issue ``trace``; of long ones a first part of ``most_issued`` in all."""
    table, steps = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(trace, TRACE)
    numbers, shared, found = np.array([core[name] for name in _CORE_NUMBERS]), np.array(residents, float), np.zeros(3)
    native_library().resident_cycles(
        table.ctypes.data, steps.ctypes.data, len(steps), numbers.ctypes.data, shared.ctypes.data, most_issued,
        found.ctypes.data,
    )  # fmt: skip
    return Timed(*found.tolist())


class Occupancy(NamedTuple):
    """A multiprocessor holds so many blocks of a kernel, by each limit."""

    by_threads: int
    by_blocks: int
    by_registers: int
    by_shared: int

    @property
    def blocks(self) -> int:
        """So many blocks run at once; at least one."""
        return max(1, min(self))


def occupancy(core: GpuCore, launch: Launch, registers: int, shared_bytes: int) -> Occupancy:
    """Compute it with ``registers`` a thread and ``shared_bytes`` a block, next to the bytes of ``launch``.

    Registers are given to warps of one scheduler each in units, and so is shared memory to blocks, of which each takes
    what the system reserves in addition (CUDA occupancy calculator, ``cuda_occupancy.h``).
    """
    unit, schedulers = int(core["register_unit"]), int(core["schedulers"])
    shared_unit, reserved = int(core["shared_unit"]), int(core["reserved_shared_bytes"])
    of_block = -(-(shared_bytes + launch.dynamic_shared_bytes + reserved) // shared_unit) * shared_unit
    of_warp = -(-max(registers, 1) * LANES // unit) * unit
    on_scheduler = int(core["registers"]) // schedulers // of_warp
    return Occupancy(
        int(core["max_warps"]) // launch.warps,
        int(core["max_blocks"]),
        on_scheduler * schedulers // launch.warps,
        int(core["shared_bytes"]) // of_block if of_block else int(core["max_blocks"]),
    )
