"""Amounts of a whole run of a program, counted and simulated in its machine code."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from cdmpp.machine_code.assembly import AsmFunction
from cdmpp.machine_code.core import WIDTH, WINDOW, run
from cdmpp.machine_code.ir import Function
from cdmpp.machine_code.loops import Loop
from cdmpp.machine_code.nesting import machine_flow
from cdmpp.machine_code.x86 import Instruction, decode

Amounts = defaultdict[str, float]
_CHAINED = 1.1
"""Where the simulated cycles are within this factor of the ports' bound, additions may take what they want."""


def add_machine_amounts(
    assembly: AsmFunction, ir: Function, loops: Sequence[Loop], ir_runs: Mapping[str, float], amounts: Amounts
) -> None:
    """Add one function's to ``amounts``, by the names of ``CODE_FEATURES`` that begin with ``machine_``."""
    flow = machine_flow(assembly, ir, loops, ir_runs)
    amounts["machine_unmatched_loops"] += flow.unmatched_loops
    amounts["machine_text"] += sum(map(len, assembly.blocks.values()))
    for blocks, header in flow.pieces:
        if (runs := flow.runs[header or blocks[0]]) <= 0:
            continue
        piece = [decode(line) for block in blocks for line in assembly.blocks[block]]
        counts = _count(piece)
        kept = math.inf if header else 1.0
        steady = run(piece, kept)
        bound = max(counts["slots"] / WIDTH, counts["vector_ports"] / 2, counts["shuffle_port"])
        bound = max(bound, (counts["loads"] + counts["gather_lanes"]) / 2, counts["stores"])
        if counts["is_fadd"] and steady.cycles > _CHAINED * bound:
            counts["slow_add_cycles"] = max(0.0, steady.cycles - run(piece, kept, add_latency=2).cycles)
        counts["cycles"] = steady.cycles
        counts["blocked_loads"], counts["aliased_loads"] = steady.blocked_loads, steady.aliased_loads
        counts["latency_cycles"] = max(0.0, steady.cycles - bound)
        trips = flow.trips[header] if header else 1.0
        if header:
            counts["loop_runs"], counts["loop_entries"] = 1.0, 1.0 / trips
            if trips * len(piece) <= 2 * WINDOW:
                counts["overlap_cycles"] = max(0.0, steady.cycles - run(piece, trips).cycles)
        for name, amount in counts.items():
            amounts[f"machine_{name}"] += runs * amount
        if runs * steady.cycles > amounts["hottest_machine_total"]:
            amounts["hottest_machine_total"] = runs * steady.cycles
            amounts["hottest_machine_cycles"] = steady.cycles
            amounts["hottest_machine_trips"] = trips
            amounts["hottest_machine_instructions"] = len(piece)
            amounts["hottest_machine_spills"] = counts["spill_loads"] + counts["spill_stores"]


def _count(piece: Sequence[Instruction]) -> Amounts:
    counts: Amounts = defaultdict(float)
    for item in piece:
        counts["slots"] += item.slots
        counts[f"is_{item.kind}"] += 1
        if item.ports == (5,):
            counts["shuffle_port"] += 1
        elif item.ports and item.ports[0] == 0 and item.ports != (0, 1, 5, 6) and item.kind != "branch":
            counts["vector_ports"] += 1
        if item.kind in ("fma", "fadd", "fmax"):
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
    return counts
