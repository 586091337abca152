"""One kernel on one GPU: what its warps execute and move, and how long that takes on the described multiprocessor.

A few warps of the grid are executed and stand for all: the first and the last of a block in the middle, the first of
the last block, one in the middle of the first. The one that issues most is what the others of its block wait for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cdmpp.devices.gpu_core import GpuCore
from cdmpp.machine_code.gpu.launch import Launch
from cdmpp.machine_code.gpu.resident import Occupancy, Residents, Timed, cache_passes, occupancy, run_residents
from cdmpp.machine_code.gpu.sass import SassKernel
from cdmpp.machine_code.gpu.sass_fields import CLASSES, FIELDS, Kind, Space
from cdmpp.machine_code.gpu.sass_rows import rows_of
from cdmpp.machine_code.gpu.warp import LINE_SECTORS, run_warp

LIMIT = 300_000
"""Instructions of a warp that are executed at most: the rest is taken to be like them."""
_ISSUED = 250_000
"""Instructions that are timed at most."""
VARIANTS: dict[str, dict[str, float]] = {
    "far": {"l2_latency": 1.5},
    "narrow": {"l2_sectors_per_cycle": 1 / 1.5},
    "merged": {"merged_share": 2.0},
}
"""Factors on numbers of a core that documents hardly give: each is simulated, too, and training programs tell."""
_AT = {name: place for place, name in enumerate(FIELDS)}


class KernelWork(NamedTuple):
    """A kernel does this work by its tensor program."""

    block_read_bytes: float
    """Different bytes of global memory that a block reads."""
    fma_per_thread: float
    """Multiply-adds: they tell how much longer a warp runs that was stopped."""


@dataclass(frozen=True)
class KernelCode:
    """A mean warp does so much; a multiprocessor needs so many cycles for its part of the grid."""

    launch: Launch
    occupancy: Occupancy
    registers: int
    stack_bytes: int
    shared_bytes: int
    instructions: int
    """Instructions in the text of the kernel."""
    counts: dict[str, float]
    """Warp instructions by class, see ``sass_fields.CLASSES``."""
    active_share: float
    """Share of lanes that are active, in all that is issued."""
    load_sectors: float
    """Sectors of 32 bytes that a warp loads from global memory, copies included."""
    fresh_sectors: float
    """Sectors among them that the warp had not touched before."""
    store_sectors: float
    shared_passes: float
    """Passes through the banks of shared memory."""
    stack_words: float
    stall_cycles: float
    """Cycles that the compiler lets the warp wait for its own results."""
    missing_share: float
    """Share of fresh sectors that go to the second-level cache: other warps of the block touched the rest."""
    capped: bool
    """True if the warp runs longer than ``LIMIT``."""
    cycles: dict[str, float]
    """``simulated`` and what each resource by itself would take."""


def kernel_code(
    kernel: SassKernel,
    launch: Launch,
    core: GpuCore,
    multiprocessors: int,
    work: KernelWork,
    literals: bytes = b"",
) -> KernelCode:
    """Execute and time ``kernel`` on ``multiprocessors`` of ``core``.

    Raises:
        DataError: an instruction that is not known, or an address or branch that depends on data.
    """
    rows = rows_of(kernel)
    places = {
        (launch.blocks // 2, 0),
        (launch.blocks // 2, launch.warps - 1),
        (launch.blocks - 1, 0),
        (0, launch.warps // 2),
    }
    runs = [run_warp(kernel, rows, launch, block, warp, LIMIT, literals) for block, warp in sorted(places)]
    amounts, capped = _mean([_amounts(rows, run.trace, core) for run in runs]), not all(run.ended for run in runs)
    longer = max(1.0, work.fma_per_thread / amounts["ffma"]) if capped and amounts["ffma"] else 1.0
    amounts = {name: longer * amount for name, amount in amounts.items()}
    heaviest = max(runs, key=lambda run: len(run.trace))
    timing = _Timing(rows, heaviest.trace, core, launch, multiprocessors, kernel, amounts, work, longer)
    return KernelCode(
        launch, timing.occupancy, kernel.registers, kernel.stack_bytes, kernel.shared_bytes, len(kernel.lines),
        {name: amounts[name] for name in CLASSES}, amounts["lanes"] / max(amounts["issued"], 1.0) / 32.0,
        amounts["load_sectors"], amounts["fresh_sectors"], amounts["store_sectors"], amounts["shared_passes"],
        amounts["stack_words"], amounts["stall_cycles"], timing.missing, capped,
        timing.cycles(),
    )  # fmt: skip


def _amounts(rows: np.ndarray, trace: np.ndarray, core: GpuCore) -> dict[str, float]:
    # A field at a time: whole rows of all that is issued would be a hundred megabytes.
    kind, space, counted, stall = (rows[:, _AT[name]][trace["at"]] for name in ("kind", "space", "counted", "stall"))
    counts = np.bincount(counted, minlength=len(CLASSES))
    shared, local = space == Space.SHARED, space == Space.LOCAL
    reads = (space == Space.GLOBAL) & (kind != Kind.STORE)
    writes = (space == Space.GLOBAL) & (kind == Kind.STORE)
    units = trace["units"].astype(float)
    return {
        **dict(zip(CLASSES, counts.astype(float).tolist(), strict=True)),
        "issued": float(len(trace)),
        "lanes": float(trace["lanes"].sum()),
        "load_sectors": float(units[reads].sum()),
        "fresh_sectors": float(trace["fresh"][reads].sum()),
        "store_sectors": float(units[writes].sum()),
        "shared_passes": float(units[shared].sum()),
        "merged_passes": float(np.where(kind == Kind.LOAD, trace["merged"], units)[shared].sum()),
        "cache_passes": float(cache_passes(core, units, trace["merged"].astype(float))[reads | writes].sum()),
        "stack_words": float(units[local].sum()) / LINE_SECTORS,
        "stack_store_sectors": float(units[local & (kind == Kind.STORE)].sum()),
        "stall_cycles": float(np.maximum(stall, 1).sum()),
    }


def _mean(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(one[name] for one in found) / len(found) for name in found[0]}


_FMA = ("ffma", "fadd", "fmul", "multiply", "move")
_ALU = ("integer", "float")
_SPECIAL = ("special", "convert", "system")


class _Timing:
    """Cycles of one multiprocessor for its share of the grid."""

    def __init__(
        self,
        rows: np.ndarray,
        trace: np.ndarray,
        core: GpuCore,
        launch: Launch,
        multiprocessors: int,
        kernel: SassKernel,
        amounts: dict[str, float],
        work: KernelWork,
        longer: float,
    ) -> None:
        self.rows, self.trace, self.core, self.launch, self.amounts = rows, trace, core, launch, amounts
        self.occupancy = occupancy(core, launch, kernel.registers, kernel.shared_bytes)
        self.blocks = -(-launch.blocks // multiprocessors)
        """Blocks that the busiest multiprocessor gets."""
        self.live = min(self.occupancy.blocks, self.blocks)
        fresh = launch.warps * amounts["fresh_sectors"] * 32.0
        self.missing = min(1.0, work.block_read_bytes / fresh) if fresh > 0 and work.block_read_bytes > 0 else 1.0
        self.longer = longer

    def cycles(self) -> dict[str, float]:
        amounts, core = self.amounts, self.core
        warps, rounds = self.blocks * self.launch.warps, self.blocks / self.live
        of_scheduler = math.ceil(warps / core["schedulers"])
        return {
            "simulated": self.longer * self._simulated(core),
            **{name: self.longer * self._simulated(core.scaled(**factors)) for name, factors in VARIANTS.items()},
            "alone": self.longer * self._residents(1, core).cycles,
            "issue": of_scheduler * amounts["issued"],
            "fma": of_scheduler * core["fma_cycles"] * sum(amounts[name] for name in _FMA),
            "alu": of_scheduler * core["alu_cycles"] * sum(amounts[name] for name in _ALU),
            "special": of_scheduler * core["special_cycles"] * sum(amounts[name] for name in _SPECIAL),
            "shared": warps * (amounts["shared_passes"] + amounts["shuffle"]),
            "merged_shared": warps * (amounts["merged_passes"] + amounts["shuffle"]),
            "l1": warps * amounts["cache_passes"],
            "l2": warps * amounts["fresh_sectors"] * self.missing / core["l2_sectors_per_cycle"],
            "stores": warps * amounts["store_sectors"] / core["store_sectors_per_cycle"],
            "stack": warps * amounts["stack_words"],
            "stack_stores": warps * amounts["stack_store_sectors"] / core["store_sectors_per_cycle"],
            "stall": rounds * amounts["stall_cycles"],
            "start": float(self.launch.blocks),
        }

    def _simulated(self, core: GpuCore) -> float:
        """Full rounds of all that live together, and a last one of those that are left."""
        full = self._residents(self.live, core).cycles
        rounds, left = divmod(self.blocks, self.live)
        if not left:
            return rounds * full
        share = left / self.live
        return rounds * full + (
            full * share if share > _NEARLY_FULL else max(self._residents(left, core).cycles, full * share)
        )

    def _residents(self, blocks: int, core: GpuCore) -> Timed:
        schedulers, warps = int(self.core["schedulers"]), self.launch.warps
        on_one = (blocks, -(-warps // schedulers)) if warps >= schedulers else (-(-blocks * warps // schedulers), 1)
        residents = Residents(*on_one, min(schedulers, blocks * warps), self.missing)
        return run_residents(self.rows, self.trace, core, residents, _ISSUED)


_NEARLY_FULL = 0.6
"""Above it a last round takes its share of a full one."""
