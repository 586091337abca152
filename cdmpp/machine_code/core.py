"""An out-of-order core runs a piece of machine code: cycles by its width, ports, window and chains of dependence.

A list scheduler as in public throughput analysers (llvm-mca, uiCA), small: every access hits the first-level cache and
every branch is foreseen. What misses cost is the business of the analytic model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdmpp.machine_code.x86 import LOAD_LATENCY, LOAD_PORTS, STORE_PORTS, Instruction

WIDTH, WINDOW = 5, 352
"""Instructions that start in a cycle, and those that may be on the way, on Ice Lake server cores."""
_FORWARD_CYCLES, _BLOCKED_CYCLES = 5, 14
"""From a store to a load of the same bytes; to one that needs more than a single store holds."""
_ALIAS_BYTES, _ALIASED_CYCLES = 4096, 10
"""Addresses that far apart are taken for the same at first; cycles that a load loses by it to a store underway."""
_REPEATED = 1000
"""Instructions at least that a loop is followed for: start and end then weigh little."""
_LONGEST = 3000
"""Instructions of one piece that are followed; a longer one is taken to go on as it began."""


@dataclass(frozen=True)
class Steady:
    """What one run of a piece costs, once many have gone before."""

    cycles: float
    blocked_loads: float
    """Loads that wait for several stores to reach the cache."""
    aliased_loads: float
    """Loads that meet a store of another place with the same low address bits."""


def run(piece: Sequence[Instruction], trips: float, add_latency: int = 4) -> Steady:
    """Cycles a run of ``piece``, repeated: each needs what those before made, until ``trips`` are done; 1: nothing.

    ``add_latency``: cycles of a floating-point addition, which generations differ in.
    """
    if not piece:
        return Steady(0.0, 0.0, 0.0)
    followed = piece[:_LONGEST]
    runs = max(4, min(24, -(-_REPEATED // len(followed)))) if len(followed) < _REPEATED else 2
    # Of a loop that is entered anew within the window of the core, whole entries are followed.
    between = max(1, round(trips)) if trips * len(followed) <= 2 * WINDOW else runs
    if between < runs:
        runs = between * max(2, -(-runs // between))
    core = _Core(add_latency)
    ends = []
    for turn in range(runs):
        core.follow(followed, anew=turn % between == 0)
        ends.append(core.retired)
    before = (runs // between // 2 * between if between < runs else runs // 2) - 1
    scale = len(piece) / len(followed)
    cycles = (ends[-1] - ends[before]) / (runs - 1 - before)
    return Steady(cycles * scale, core.blocked / runs * scale, core.aliased / runs * scale)


class _Core:
    def __init__(self, add_latency: int) -> None:
        self.add_latency = add_latency
        self.busy = [0] * 8  # of each port: bit t is set where it is taken in cycle t
        self.ready: dict[str, int] = {}
        self.stored: dict[str, dict[int, tuple[int, int]]] = {}  # base -> displacement -> width, cycle
        self.stored_low: dict[tuple[str, int], tuple[int, int]] = {}  # base, low bits -> displacement, cycle
        self.retired = 0
        self.blocked = self.aliased = 0
        self._retirements: list[int] = []
        self._started = 0

    def follow(self, piece: Sequence[Instruction], anew: bool) -> None:
        if anew:
            self.ready, self.stored, self.stored_low = {}, {}, {}
        ready, window = self.ready, self._retirements
        for item in piece:
            self._started += item.slots
            start = self._started // WIDTH
            if len(window) >= WINDOW and window[-WINDOW] > start:
                start = window[-WINDOW]
                self._started = start * WIDTH
            at = max([start, *[ready.get(register, 0) for register in item.reads]])
            if item.lanes and item.loads:
                for _ in range(item.lanes):
                    at = self._take(LOAD_PORTS, at)
            elif item.loads and item.address is not None:
                needed = max([start, *[ready.get(register, 0) for register in item.address_registers]])
                loaded = self._take(LOAD_PORTS, needed) + LOAD_LATENCY[item.width]
                at = max(at, loaded, self._forwarded(item))
            if item.ports:
                at = self._take(item.ports, at, item.busy)
            done = at + (self.add_latency if item.kind == "fadd" else item.latency)
            if item.stores and item.address is not None:
                base, displacement = item.address
                width = 4 if item.scalar else item.width
                self.stored.setdefault(base, {})[displacement] = (width, done)
                self.stored_low[base, displacement % _ALIAS_BYTES] = (displacement, done)
                # The widest registers leave one at a time.
                done = max(done, self._take(STORE_PORTS[:1] if item.width == 64 else STORE_PORTS, done) + 1)
            for register in item.writes:
                ready[register] = done
                if self.stored:
                    self._moved(register)
            self.retired = max(self.retired, done)
            window.append(self.retired)

    def _take(self, ports: tuple[int, ...], earliest: int, cycles: int = 1) -> int:
        """The first cycle from ``earliest`` on in which one of ``ports`` is free; it is taken then."""
        best, chosen = -1, 0
        for port in ports:
            free = ~(self.busy[port] >> earliest)
            cycle = earliest + (free & -free).bit_length() - 1
            if best < 0 or cycle < best:
                best, chosen = cycle, port
        self.busy[chosen] |= ((1 << cycles) - 1) << best
        return best

    def _forwarded(self, item: Instruction) -> int:
        """Cycle in which a load has what was stored to its place before; 0 where nothing was."""
        assert item.address is not None
        base, displacement = item.address
        places = self.stored.get(base)
        if not places:
            return 0
        youngest, done = self.stored_low.get((base, displacement % _ALIAS_BYTES), (displacement, 0))
        if youngest != displacement:
            self.aliased += 1
            return done + _ALIASED_CYCLES
        width = 4 if item.scalar else item.width
        exact = places.get(displacement)
        if exact is not None and exact[0] >= width:
            return exact[1] + _FORWARD_CYCLES
        parts = [done for at, (size, done) in places.items() if at < displacement + width and displacement < at + size]
        if not parts:
            return 0
        if any(at <= displacement and displacement + width <= at + size for at, (size, _) in places.items()):
            return max(parts) + _FORWARD_CYCLES
        self.blocked += 1
        return max(parts) + _BLOCKED_CYCLES

    def _moved(self, register: str) -> None:
        """Addresses by a register that changed are other places now."""
        if register[0] == "r":
            marks = (f"%{register},", f"%{register})")
            for base in [base for base in self.stored if any(mark in base for mark in marks)]:
                for displacement in self.stored.pop(base):
                    self.stored_low.pop((base, displacement % _ALIAS_BYTES), None)
