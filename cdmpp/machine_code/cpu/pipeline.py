"""An out-of-order core runs a piece of machine code: cycles by its width, ports, window and chains of dependence.

A list scheduler as in public throughput analysers (llvm-mca, uiCA), small: every access hits the first-level cache and
every branch is foreseen. What misses cost is the business of the analytic model; lines that fight for one set of a
cache are counted here, since only the machine code tells which are in use together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdmpp.devices.cores import Core, Unit
from cdmpp.machine_code.cpu.addresses import Addresses, Value
from cdmpp.machine_code.cpu.operation import Operation

LINE_BYTES = 64
_WIDE = 64
_ALIAS_BYTES = 4096
"""Addresses that far apart are taken for the same at first."""
_REPEATED = 1000
"""Instructions at least that a loop is followed for: start and end then weigh little."""
_LONGEST = 3000
"""Instructions of one piece that are followed; a longer one is taken to go on as it began."""


@dataclass(frozen=True)
class Steady:
    """What one run of a piece costs, once many have gone before."""

    cycles: float
    blocked_loads: float = 0.0
    """Loads that wait for several stores to reach the cache."""
    masked_waits: float = 0.0
    """Loads that wait for a masked store to reach the cache."""
    aliased_loads: float = 0.0
    """Loads that meet a store of another place with the same low address bits."""
    l1_conflicts: float = 0.0
    """Lines of one run that share a set of the first-level cache with more of them than it holds."""
    l2_conflicts: float = 0.0


def unit_of(core: Core, item: Operation) -> Unit:
    """What executes ``item``."""
    return core.units[item.name][item.width == _WIDE]


def slots_of(core: Core, item: Operation) -> int:
    """Places in the core's width; a load or store takes one that a move between registers does not need besides."""
    moves_only = item.name in ("move", "int_move") and item.address is not None
    slots = 0 if moves_only else unit_of(core, item).slots
    return max(1, slots + (item.loads and slots == 0) + item.stores)


def run(core: Core, piece: Sequence[Operation], trips: float, known: Mapping[str, Value] | None = None) -> Steady:
    """What a run of ``piece`` costs, repeated: each needs what those before made, until ``trips`` are done; 1: nothing.

    ``known``: what registers hold when it is entered, see ``Addresses``.
    """
    if not piece:
        return Steady(0.0)
    followed = piece[:_LONGEST]
    runs = max(4, min(24, -(-_REPEATED // len(followed)))) if len(followed) < _REPEATED else 2
    # Of a loop that is entered anew within the window of the core, whole entries are followed.
    between = max(1, round(trips)) if trips * len(followed) <= 2 * core["window"] else runs
    if between < runs:
        runs = between * max(2, -(-runs // between))
    before = (runs // between // 2 * between if between < runs else runs // 2) - 1
    middle, end, blocked, masked, aliased, *conflicts = _followed(core, followed, runs, between, before, known or {})
    scale = len(piece) / len(followed)
    cycles, share = scale * (end - middle) / (runs - 1 - before), scale / runs
    return Steady(cycles, share * blocked, share * masked, share * aliased, conflicts[0], conflicts[1])


def _followed(
    core: Core, piece: Sequence[Operation], runs: int, between: int, before: int, known: Mapping[str, Value]
) -> list[float]:
    """Cycles after the run ``before`` and after all, waits of three kinds in all, conflicts of the latest run."""
    pipeline = _Pipeline(core, known)
    ends = []
    for turn in range(runs):
        pipeline.follow(piece, anew=turn % between == 0)
        ends.append(pipeline.retired)
    conflicts = [_conflicts(pipeline.lines, core[f"{c}_sets"], core[f"{c}_ways"]) for c in ("l1", "l2")]
    waits = [float(n) for n in (pipeline.blocked, pipeline.masked, pipeline.aliased)]
    return [float(ends[before]), float(ends[-1]), *waits, *conflicts]


def _conflicts(lines: set[tuple[tuple, int]], sets: float, ways: float) -> float:
    used = Counter((unknowns, line % int(sets)) for unknowns, line in lines)
    return float(sum(n for n in used.values() if n > ways))


class _Pipeline:
    def __init__(self, core: Core, known: Mapping[str, Value]) -> None:
        self.core, self.known = core, known
        self.width, self.window = int(core["issue_width"]), int(core["window"])
        n_ports, loads, stores = len(core.port_names), int(core["load_ports"]), int(core["store_ports"])
        self.busy = [0] * (n_ports + loads + stores)  # of each port: bit t is set where it is taken in cycle t
        self.load_ports = tuple(range(n_ports, n_ports + loads))
        self.store_ports = tuple(range(n_ports + loads, n_ports + loads + stores))
        self.blocked = self.masked = self.aliased = 0
        self.retired = 0
        self.lines: set[tuple[tuple, int]] = set()  # of the latest run
        self._retirements: list[int] = []
        self._started = 0
        self._store_bytes = 0.0  # that the cache has taken

    def _enter(self) -> None:
        self.ready: dict[str, int] = {}
        self.addresses = Addresses(self.known)
        # unknowns, line -> places with width, cycle, whether masked; unknowns, low bits -> offset, cycle
        self.stored: defaultdict[tuple[tuple, int], dict[int, tuple[int, int, bool]]] = defaultdict(dict)
        self.stored_low: dict[tuple[tuple, int], tuple[int, int]] = {}

    def follow(self, piece: Sequence[Operation], anew: bool) -> None:
        if anew:
            self._enter()
        self.lines.clear()
        core, ready, window, per_load = self.core, self.ready, self._retirements, self.core["load_bytes"]
        for item in piece:
            unit = unit_of(core, item)
            self._started += slots_of(core, item)
            start = self._started // self.width
            if len(window) >= self.window and window[-self.window] > start:
                start = window[-self.window]
                self._started = start * self.width
            at = max([start, *[ready.get(register, 0) for register in item.reads]])
            place: Value | None = None
            if item.address is not None and not item.lanes and (item.loads or item.stores):
                place = self.addresses.of(item)
                self.lines.update((place[0], line) for line in _lines(place[1], item.moved))
            if item.lanes and item.loads:
                for _ in range(item.lanes):
                    at = self._take(self.load_ports, at)
            elif item.loads and place is not None:
                needed = max([start, *[ready.get(register, 0) for register in item.address_registers]])
                latency = core["load_latency"] if item.width == 8 else core["vector_load_latency"]
                taken = max(1, -(-item.moved // int(per_load)))
                loaded = self._take(self.load_ports, needed, taken) + int(latency)
                at = max(at, self._forwarded(place, item.moved, loaded))
            if unit.ports:
                at = self._take(unit.ports, at, unit.busy * (item.lanes if item.name == "scatter" else 1))
            done = at + unit.latency
            if item.stores and place is not None:
                done = max(done, self._store(item, place, done))
            for register in item.writes:
                ready[register] = done
            self.addresses.follow(item)
            self.retired = max(self.retired, done)
            window.append(self.retired)

    def _store(self, item: Operation, place: Value, done: int) -> int:
        """The cycle after a store left; later loads of its place are served from ``done`` on."""
        width = item.moved
        for line in _lines(place[1], width):
            self.stored[place[0], line][place[1]] = (width, done, item.masked)
        self.stored_low[place[0], place[1] % _ALIAS_BYTES] = (place[1], done)
        pieces = max(1, -(-width // int(self.core["store_bytes"])))
        kept = pieces * (round(self.core["masked_store_cycles"]) if item.masked and item.width > 8 else 1)
        left = self._take(self.store_ports, done, kept)
        # What all ports together move is less than each of them for the widest registers.
        self._store_bytes = max(self._store_bytes, float(left)) + width / self.core["store_bytes_per_cycle"]
        return max(left + 1, int(self._store_bytes))

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

    def _forwarded(self, place: Value, width: int, loaded: int) -> int:
        """Cycle in which a load has its value: ``loaded``, or later where a store to its place is underway."""
        unknowns, offset = place
        core = self.core
        low = self.stored_low.get((unknowns, offset % _ALIAS_BYTES))
        if low is not None and low[0] != offset:
            late = low[1] + round(core["aliased_cycles"])
            self.aliased += late > loaded
            return max(loaded, late)
        parts: dict[int, tuple[int, int, bool]] = {}
        for line in _lines(offset, width):
            if found := self.stored.get((unknowns, line)):
                parts.update((at, p) for at, p in found.items() if at < offset + width and offset < at + p[0])
        if not parts:
            return loaded
        youngest = max(done for _, done, _ in parts.values())
        whole = any(at <= offset and offset + width <= at + size for at, (size, _, _) in parts.items())
        if any(masked for _, _, masked in parts.values()):
            late = youngest + round(core["masked_forward_cycles"])
            self.masked += late > loaded
        elif whole:
            exact = parts.get(offset)
            late = (exact[1] if exact and exact[0] >= width else youngest) + round(core["forward_cycles"])
        else:
            late = youngest + round(core["blocked_cycles"])
            self.blocked += late > loaded
        return max(loaded, late)


def _lines(offset: int, width: int) -> range:
    return range(offset // LINE_BYTES, (offset + width - 1) // LINE_BYTES + 1)
