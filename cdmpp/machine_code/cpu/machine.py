"""Amounts of a whole run of a program, counted in its machine code and simulated on its device's core."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

import networkx as nx

from cdmpp.devices.cores import Core
from cdmpp.machine_code.cpu.addresses import Addresses, Value
from cdmpp.machine_code.cpu.assembly import AsmFunction
from cdmpp.machine_code.cpu.flow import FunctionFlow
from cdmpp.machine_code.cpu.instruction_set import decoder
from cdmpp.machine_code.cpu.operation import Operation
from cdmpp.machine_code.cpu.pipeline import run, slots_of, unit_of

Amounts = defaultdict[str, float]
Blocks = Mapping[str, Sequence[Operation]]
_FLOATS, _SHUFFLES = ("fma", "fadd", "fmax"), ("light_shuffle", "shuffle", "insert", "transfer", "mask_transfer")
_INTEGERS = ("int", "int_multiply", "int_divide", "branch", "call")


def add_machine_amounts(core: Core, assembly: AsmFunction, flow: FunctionFlow, amounts: Amounts) -> None:
    """Add one function's to ``amounts``, by the names of ``CODE_FEATURES`` that begin with ``machine_``."""
    decode = decoder(assembly.language)
    decoded = {name: [decode(line) for line in lines] for name, lines in assembly.blocks.items()}
    places = _Places(assembly, decoded, flow)
    amounts["unknown_loops"] = max(amounts["unknown_loops"], float(flow.unknown > 0))
    amounts["machine_text"] += sum(map(len, assembly.blocks.values()))
    for blocks, header in _pieces(assembly, flow):
        in_all = 0.0
        for block in blocks:
            in_all += flow.runs[block] * len(decoded[block])
            for name, amount in _count(decoded[block]).items():
                amounts[f"machine_{name}"] += flow.times * flow.runs[block] * amount
        piece = [item for block in blocks for item in decoded[block]]
        if (runs := flow.times * in_all / len(piece)) <= 0:
            continue
        bounds = bounds_of(core, piece)
        known = places.at(header or blocks[0])
        steady = run(core, piece, math.inf if header else 1.0, known)
        counts = asdict(steady) | bounds
        counts["latency_cycles"] = max(0.0, steady.cycles - max(bounds.values()))
        trips = flow.trips(header) if header else 1.0
        if header:
            amounts["machine_loop_runs"] += flow.times * flow.runs[header]
            amounts["machine_loop_entries"] += flow.times * flow.entries[header]
            if trips * len(piece) <= 2 * core["window"]:
                counts["overlap_cycles"] = max(0.0, steady.cycles - run(core, piece, trips, known).cycles)
        for name, amount in counts.items():
            amounts[f"machine_{name}"] += runs * amount
        if runs * steady.cycles > amounts["hottest_machine_total"]:
            amounts["hottest_machine_total"] = runs * steady.cycles
            amounts["hottest_machine_cycles"] = steady.cycles
            amounts["hottest_machine_trips"] = trips
            amounts["hottest_machine_instructions"] = len(piece)
            spills = _count(piece)
            amounts["hottest_machine_spills"] = spills["spill_loads"] + spills["spill_stores"]


def _pieces(function: AsmFunction, flow: FunctionFlow) -> Iterator[tuple[tuple[str, ...], str | None]]:
    """What runs as one: the usual way through an innermost loop, with its header; other blocks alone, with None."""
    in_loops: set[str] = set()
    for header, body in flow.bodies.items():
        if any(other in body and len(inside) < len(body) for other, inside in flow.bodies.items()):
            continue
        runs = {b: flow.runs[b] for b in function.order if b in body and function.blocks[b]}
        if usual := [b for b, often in runs.items() if often > 0 and often >= 0.5 * flow.runs[header]]:
            in_loops.update(usual)
            yield tuple(usual), header
    for block in function.order:
        if block not in in_loops and function.blocks[block]:
            yield (block,), None


def bounds_of(core: Core, piece: Sequence[Operation]) -> dict[str, float]:
    """Cycles that each resource of the core needs for one run of ``piece``, whatever waits for what."""
    load_bytes, store_bytes = core["load_bytes"], core["store_bytes"]
    loads = sum(max(1.0, math.ceil(item.moved / load_bytes)) for item in piece if item.loads and not item.lanes)
    stored = [item for item in piece if item.stores and not item.lanes]
    stores = sum(math.ceil(item.moved / store_bytes) for item in stored) / core["store_ports"]
    stores = max(stores, sum(item.moved for item in stored) / core["store_bytes_per_cycle"])
    scattered = sum(item.lanes for item in piece if item.lanes and item.stores)
    return {
        "issue_cycles": sum(slots_of(core, item) for item in piece) / core["issue_width"],
        "float_cycles": _port_bound(core, [item for item in piece if item.name in _FLOATS]),
        "vector_cycles": _port_bound(core, [item for item in piece if item.name not in _INTEGERS]),
        "shuffle_cycles": _port_bound(core, [item for item in piece if item.name in _SHUFFLES]),
        "integer_cycles": _port_bound(core, [item for item in piece if item.name in _INTEGERS]),
        "load_cycles": loads / core["load_ports"],  # gathers apart: microcode may slow them on a device
        "store_cycles": stores + core["scatter_cycles_per_lane"] * scattered,
    }


def _port_bound(core: Core, items: Sequence[Operation]) -> float:
    """Cycles that the busiest group of ports needs: all work that no port outside the group can take."""
    work: defaultdict[frozenset[int], float] = defaultdict(float)
    for item in items:
        if (unit := unit_of(core, item)).ports:
            work[frozenset(unit.ports)] += unit.busy
    groups = {a | b for a in work for b in work}
    return max((sum(n for ports, n in work.items() if ports <= group) / len(group) for group in groups), default=0.0)


def _count(piece: Sequence[Operation]) -> Amounts:
    counts: Amounts = defaultdict(float)
    for item in piece:
        counts[f"is_{item.kind}"] += 1
        if item.name in _FLOATS:
            counts["scalar_floats" if item.scalar else "vector_floats"] += 1
        if item.lanes:
            counts["gather_lanes" if item.loads else "scatter_lanes"] += item.lanes
            continue
        for moves, name in ((item.loads, "load"), (item.stores, "store")):
            if moves:
                counts[f"{name}s"] += 1
                counts[f"wide_{name}s"] += item.width == 64
                counts[f"scalar_{name}s"] += item.scalar
                counts[f"spill_{name}s"] += item.spills
                counts[f"masked_{name}s"] += item.masked
    return counts


class _Places:
    """What registers hold where a piece of a function begins, as far as it follows from what comes before."""

    def __init__(self, function: AsmFunction, decoded: Blocks, flow: FunctionFlow) -> None:
        self.decoded, self.order, self.place = decoded, function.order, function.place
        self.bodies = flow.bodies
        self.written = {block: {name for item in items for name in item.writes} for block, items in decoded.items()}
        self.growing = {header: self._growth(body) for header, body in flow.bodies.items()}
        self.dominator = nx.immediate_dominators(function.graph, function.entry)
        self.known: dict[tuple[str, ...], Addresses] = {}

    def at(self, block: str) -> dict[str, Value]:
        """Register -> its value when ``block`` is entered first, in iteration N of the loops around it."""
        chain = [block]
        while chain[-1] in self.dominator and self.dominator[chain[-1]] != chain[-1]:
            chain.append(self.dominator[chain[-1]])
        chain.reverse()
        addresses, past = Addresses(), tuple[str, ...]()
        for before, after in zip(chain, chain[1:], strict=False):
            inside = before in self.bodies and block in self.bodies[before]
            past = (*past, before, "iterated" if inside else "", after)
            if past not in self.known:
                self.known[past] = self._after(Addresses(addresses.values), before, inside, after)
            addresses = self.known[past]
        return addresses.values

    def _after(self, addresses: Addresses, before: str, inside: bool, after: str) -> Addresses:
        """On through ``before``, in some iteration of its loop where ``inside``, to the beginning of ``after``."""
        if inside:
            steps, changed = self.growing[before]
            addresses.forget(sorted(changed))
            for register, step in steps.items():
                addresses.advance(register, f"iterations of {before}", step)
        for item in self.decoded[before]:
            addresses.follow(item)
        between = self.order[self.place[before] + 1 : self.place[after]]
        addresses.forget(sorted(set().union(*(self.written[block] for block in between)) - {"flags"}))
        return addresses

    def _growth(self, body: Iterable[str]) -> tuple[dict[str, int], set[str]]:
        """Registers that grow by a constant in every iteration of a loop, with it, and those that change otherwise."""
        steps: defaultdict[str, int] = defaultdict(int)
        changed: set[str] = set()
        for item in (item for block in body for item in self.decoded[block]):
            if item.assigns and item.assigns[1] == ((item.assigns[0], 1),):
                steps[item.assigns[0]] += item.assigns[2]
            else:
                changed.update(item.writes)
        return {register: steps[register] for register in sorted(steps.keys() - changed)}, changed - {"flags"}
