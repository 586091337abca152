"""Warps that live on one scheduler of a multiprocessor together, in time. Readable twin of ``native/resident.h``.

The scheduler issues one instruction a cycle: the first warp that may go on, the last one again where several may. What
a warp waits for is in the encoding: cycles to stall, and scoreboards that loads and the like set until they are done.
The four schedulers share the pipe to memory, so each gets its part of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cdmpp.devices.gpu_core import GpuCore
from cdmpp.machine_code.gpu.sass_fields import FIELDS, Kind, Pipe, Space
from cdmpp.machine_code.gpu.warp_state import LANES, Launch

_A = {name: place for place, name in enumerate(FIELDS)}
_SCOREBOARDS = 6
SPECIAL_QUEUE, MEMORY_QUEUE, L2_QUEUE = 16, 24, 256
"""Cycles of work that may wait before the pipe of special functions, that to memory, and the second-level cache."""
OPERANDS_CYCLES = 12
"""Until an access to memory has read its registers."""


class Residents(NamedTuple):
    """Who shares a scheduler, and how its accesses fare."""

    blocks: int
    """Whose warps are on it."""
    warps: int
    """Of each of them."""
    sharers: int
    """Schedulers that have warps: they share the pipe to memory."""
    missing: float
    """Share of first touches of a sector that go to the second-level cache: other warps of the block touched others."""


@dataclass(frozen=True)
class Timed:
    """Cycles until all residents ended, and what kept them."""

    cycles: float
    memory_cycles: float
    """Of the pipe to memory."""
    l2_cycles: float
    """Of the second-level cache."""


@dataclass
class _Resident:
    block: int
    ready: int
    place: int = 0
    scoreboards: list[int] = field(default_factory=lambda: [0] * _SCOREBOARDS)
    copied: int = 0
    groups: list[int] = field(default_factory=list)
    waiting: bool = False
    done: bool = False


def cache_passes(core: GpuCore, sectors: Any, lines: Any) -> Any:
    """Cycles that accesses (arrays, or numbers) to so many ``sectors`` in so many ``lines`` keep the first cache."""
    return np.maximum(sectors / core["l1_sectors_per_cycle"], lines / core["l1_lines_per_cycle"])


def run_residents(rows: np.ndarray, trace: np.ndarray, core: GpuCore, residents: Residents, most_issued: int) -> Timed:
    """Time ``residents`` that all issue ``trace``; of long ones the first part, so that ``most_issued`` are issued."""
    count = residents.blocks * residents.warps
    issued = min(len(trace), max(most_issued // count, 1))
    state = _Scheduler(rows, trace[:issued], core, residents)
    state.run()
    scale = len(trace) / issued
    last = max(state.last, int(max(state.memory, state.l2)))
    return Timed(last * scale, state.memory * scale, state.l2 * scale)


class _Scheduler:
    def __init__(self, rows: np.ndarray, trace: np.ndarray, core: GpuCore, residents: Residents) -> None:
        self.rows, self.trace, self.core, self.residents = rows, trace, core, residents
        self.warps = [
            _Resident(number // residents.warps, number) for number in range(residents.blocks * residents.warps)
        ]
        self.now = self.last = self.fma = self.alu = self.special = 0
        self.memory = self.l2 = 0.0

    def run(self) -> None:
        before: _Resident | None = None
        while not all(warp.done for warp in self.warps):
            best, soonest = None, 0
            for warp in self.warps:
                if warp.done or warp.waiting:
                    continue
                ready = self._ready(warp)
                if best is None or ready < soonest or (ready == soonest and warp is before):
                    best, soonest = warp, ready
            if best is None:  # all wait at barriers for warps that are gone
                for warp in self.warps:
                    self._release(warp.block, by_force=True)
                continue
            self.now = soonest
            self._issue(best)
            before = best
            self.now += 1

    def _ready(self, warp: _Resident) -> int:
        row = self.rows[self.trace["at"][warp.place]]
        ready = max(warp.ready, self.now)
        for number in range(_SCOREBOARDS):
            if int(row[_A["waits"]]) >> number & 1:
                ready = max(ready, warp.scoreboards[number])
        pipe = Pipe(int(row[_A["pipe"]]))
        if pipe == Pipe.FMA:
            return max(ready, self.fma)
        if pipe == Pipe.ALU:
            return max(ready, self.alu)
        if pipe == Pipe.SPECIAL:
            return max(ready, self.special - SPECIAL_QUEUE)
        if pipe == Pipe.MEMORY:
            behind = max(self.memory, self.l2 - L2_QUEUE) - MEMORY_QUEUE * self.residents.sharers
            return max(ready, math.trunc(behind))
        return ready

    def _issue(self, warp: _Resident) -> None:
        step = self.trace[warp.place]
        row, core = self.rows[step["at"]], self.core
        kind, pipe = Kind(int(row[_A["kind"]])), Pipe(int(row[_A["pipe"]]))
        done = self.now
        if pipe == Pipe.FMA:
            self.fma = self.now + int(core["fma_cycles"])
        elif pipe == Pipe.ALU:
            self.alu = self.now + int(core["alu_cycles"])
        elif pipe == Pipe.SPECIAL:
            self.special = max(self.special, self.now) + int(core["special_cycles"])
            done = self.special + int(core["special_latency"])
        elif pipe == Pipe.MEMORY:
            done = self._access(row, step, kind)
        if (board := int(row[_A["write_barrier"]])) < _SCOREBOARDS:
            warp.scoreboards[board] = max(warp.scoreboards[board], done)
        if (board := int(row[_A["read_barrier"]])) < _SCOREBOARDS:
            read = self.now + max(OPERANDS_CYCLES, math.trunc(self.memory) - self.now + 4)
            warp.scoreboards[board] = max(warp.scoreboards[board], min(done, read))
        onward = self.now + max(int(row[_A["stall"]]), 1)
        if kind == Kind.COPY:
            warp.copied = max(warp.copied, done)
        elif kind == Kind.COMMIT:
            warp.groups.append(warp.copied)
        elif kind == Kind.WAIT and len(warp.groups) > int(row[_A["option"]]):
            onward = max(onward, warp.groups[-1 - int(row[_A["option"]])])
        warp.ready, self.last = onward, max(self.last, onward)
        warp.place += 1
        if warp.place >= len(self.trace):
            warp.done = True
            self._release(warp.block)
        elif kind == Kind.BARRIER:
            warp.waiting = True
            self._release(warp.block)

    def _access(self, row: np.ndarray, step: np.ndarray, kind: Kind) -> int:
        """Cycle at which an access is done."""
        core, (_, _, sharers, missing) = self.core, self.residents
        space, units, fresh = Space(int(row[_A["space"]])), float(step["units"]), float(step["fresh"])
        begin = max(self.memory, float(self.now))
        if space in (Space.NONE, Space.SHARED):
            if kind == Kind.LOAD:
                merged = core["merged_share"]
                units = units * (1.0 - merged) + float(step["merged"]) * merged
            self.memory = begin + sharers * max(1.0, units)
            return math.trunc(self.memory) + int(core["shared_latency" if kind != Kind.STORE else "store_latency"])
        self.memory = begin + sharers * max(1.0, cache_passes(core, units, float(step["merged"])))
        if kind == Kind.STORE:  # through the first-level cache, those to the stack as well
            self.l2 = max(self.l2, self.memory) + sharers * units / core["store_sectors_per_cycle"]
            return math.trunc(self.memory) + int(core["store_latency"])
        if space == Space.LOCAL or not fresh:
            return math.trunc(self.memory) + int(core["l1_latency"])
        self.l2 = max(self.l2, self.memory) + sharers * fresh * missing / core["l2_sectors_per_cycle"]
        return math.trunc(self.l2) + int(core["l2_latency"])

    def _release(self, block: int, by_force: bool = False) -> None:
        """Let the warps of a block go on once all that are left of it wait."""
        left = [warp for warp in self.warps if warp.block == block and not warp.done]
        if left and (by_force or all(warp.waiting for warp in left)):
            after = self.now + 2 * self.residents.warps + int(self.core["barrier_cycles"])
            for warp in left:
                if warp.waiting:
                    warp.waiting, warp.ready = False, max(warp.ready, after)


class Occupancy(NamedTuple):
    """How many blocks of a kernel a multiprocessor holds, by what limits it."""

    by_threads: int
    by_blocks: int
    by_registers: int
    by_shared: int

    @property
    def blocks(self) -> int:
        """At once; at least one."""
        return max(1, min(self))


def occupancy(core: GpuCore, launch: Launch, registers: int, shared_bytes: int) -> Occupancy:
    """Of a kernel with ``registers`` a thread and ``shared_bytes`` a block, beside those that ``launch`` gives.

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
