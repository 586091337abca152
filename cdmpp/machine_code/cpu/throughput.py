"""Cycles of one basic block on a wide out-of-order core: a lower bound for each resource, and their maximum.

The numbers are rounded from public instruction tables for recent x86 server cores: a scale for counts, which a model
that learns from measurements corrects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from cdmpp.machine_code.cpu.code_features import WIDTHS
from cdmpp.machine_code.cpu.instruction import registers
from cdmpp.machine_code.cpu.ir import Function

_FLOAT_LATENCY = 4.0
_VECTOR_REGISTERS = 30
_ODD_LANE_CYCLES = 0.4
_CALL_CYCLES, _SPILL_CYCLES = 15.0, 0.7
_DIVIDE_CYCLES = {1: 4.0, 4: 5.0, 8: 5.0, 16: 10.0}
_FLOAT_PHI = re.compile(r"= phi (?:float|double|<\d+ x (?:float|double)>)")
_OPERAND = re.compile(r'%"?[\w.$-]+"?')
_MAKES_FLOATS = re.compile(
    r"(?:fmul|fadd|fsub|fneg|load|phi|call|tail call|shufflevector|insertelement)\b[^,(]*(?:float|double)"
)


def cycles_by_resource(counts: Mapping[str, float], chain: float, spilled: float) -> dict[str, float]:
    """``RESOURCES`` and ``EXTRA`` -> cycles of one run of a block, from amounts by ``code_features.CLASSES``."""

    def all_widths(kind: str) -> float:
        return sum(counts.get(f"{kind}_{width}", 0.0) for width in WIDTHS)

    def count(*names: str) -> float:
        return sum(counts.get(name, 0.0) for name in names)

    arithmetic = all_widths("float") + 0.5 * all_widths("select") + all_widths("convert")
    loads, stores = all_widths("load") + count("load_int"), all_widths("store") + count("store_int")
    scattered = 1.3 * count("gather") + 2.0 * count("scatter")
    shuffles = count("shuffle") + 1.5 * count("insert") + _ODD_LANE_CYCLES * count("odd_wide_lanes")
    integers = count("scalar_int", "vector_int") + 6.0 * count("int_divide")
    integers += 0.3 * count("address", "extend") + 0.5 * count("branch", "broadcast")
    issued = arithmetic + 0.6 * loads + stores + 2.0 * scattered + shuffles + integers + 40.0 * count("call")
    return {
        "vector": arithmetic / 2,
        "load": loads / 2 + scattered,
        "store": stores,
        "shuffle": shuffles,
        "issue": issued / 4,
        "chain": chain,
        "divider": sum(cost * counts.get(f"divide_{width}", 0.0) for width, cost in _DIVIDE_CYCLES.items()),
        "call": _CALL_CYCLES * count("call"),
        "spill": _SPILL_CYCLES * spilled,
    }


def chain_cycles(block: Sequence[str], counts: Mapping[str, float]) -> float:
    """Of a loop of one block: its float operations over the accumulators they are spread on."""
    accumulators = sum(1 for line in block if _FLOAT_PHI.search(line))
    if not accumulators:
        return 0.0
    return _FLOAT_LATENCY * max(1.0, sum(counts.get(f"float_{width}", 0.0) for width in WIDTHS) / accumulators)


def spilled_values(function: Function, name: str) -> float:
    """Vector registers that the float values alive at one place of the block ``name`` lack."""
    block, definitions = function.blocks[name], function.definitions
    last_use = {operand: place for place, line in enumerate(block) for operand in _OPERAND.findall(line)}
    change = np.zeros(len(block), int)
    for place, line in enumerate(block):
        value, _, text = line.partition(" = ")
        if text and _MAKES_FLOATS.match(text):
            change[place] += registers(text)
            change[last_use[value]] -= registers(text)
    before = [d for operand in last_use if (d := definitions.get(operand)) and d.block != name]
    outside = sum(registers(definition.text) for definition in before if _MAKES_FLOATS.match(definition.text))
    return max(0.0, int(np.cumsum(change).max(initial=0)) + outside - _VECTOR_REGISTERS)
