"""Code vector: numbers of a CPU program that only its compiler knows, read from its LLVM IR and its machine code.

The compact AST says what a program asks for. How LLVM unrolled, vectorised, masked and spilled it is not in there, and
on CPUs it decides the latency as often as not (docs/RESULTS.md). The IR tells loops and their trips, the machine code
what is executed in them.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from cdmpp.errors import DataError
from cdmpp.machine_code.assembly import AsmFunction, parse_assembly
from cdmpp.machine_code.constants import Constants
from cdmpp.machine_code.flow import frequencies, innermost_loops
from cdmpp.machine_code.instruction import CLASSES, classify
from cdmpp.machine_code.ir import Function, parse
from cdmpp.machine_code.loops import Loop, loops_of
from cdmpp.machine_code.machine import MACHINE_AMOUNTS, MACHINE_HOTTEST, MACHINE_TEXT, add_machine_amounts
from cdmpp.machine_code.throughput import (
    EXTRA,
    RESOURCES,
    chain_cycles,
    cycles_by_resource,
    spilled_values,
    total_cycles,
)

CODE_VERSION = "5"
CODE_NAMES = (
    *(f"n_{name}" for name in CLASSES),
    *(f"cycles_{name}" for name in (*RESOURCES, *EXTRA)),
    *("cycles", "instructions_run", "instructions_text", "loop_runs", "loop_entries", "unknown_loops"),
    *("hottest_cycles", "hottest_trips", "hottest_instructions", "hottest_share"),
    *(f"machine_{name}" for name in (*MACHINE_AMOUNTS, *MACHINE_TEXT)),
    *(f"hottest_machine_{name}" for name in MACHINE_HOTTEST),
)
"""log2(1 + x) of each, except shares: amounts of a whole run of the program."""
CODE_WIDTH = len(CODE_NAMES)
_PARTS = 2.0**15
_WRAPPER, _REFUSAL = "__tvm_ffi_main", "__tvm_set_raised"


def code_vector(llvm_ir: str, assembly: str) -> np.ndarray:
    """(CODE_WIDTH,) float32 of one program, from its optimised LLVM IR and the assembly made of it.

    Raises:
        DataError: the assembly is not of x86-64, or lacks a function of the IR.
    """
    amounts: defaultdict[str, float] = defaultdict(float)
    hottest = 0.0
    machine = parse_assembly(assembly)
    for function in _computing(parse(llvm_ir)):
        assembled = machine.get(function.name)
        if assembled is None:
            raise DataError(
                f"no x86-64 machine code of {function.name}: code vectors are of x86-64 programs, others are "
                "predicted from their ASTs alone"
            )
        if function.name == _WRAPPER:
            assembled = assembled.after_checks(_REFUSAL)
        hottest = _add_function(function, assembled, amounts, hottest)
    if not amounts["instructions_text"]:
        raise DataError("no function of the compiled module computes anything that is known here")
    amounts["hottest_share"] = hottest / max(amounts["cycles"], 1.0)
    amounts["hottest_machine_share"] = amounts["hottest_total"] / max(amounts["machine_cycles"], 1.0)
    values = np.array([amounts[name] for name in CODE_NAMES])
    shares = np.array([name.endswith("_share") for name in CODE_NAMES])
    return rounded(np.where(shares, values, np.log2(1.0 + values))).astype(np.float32)


def rounded(vectors: np.ndarray) -> np.ndarray:
    """To as many digits as matter: nothing below a thousandth of an amount, and files are a third smaller."""
    mantissa, exponent = np.frexp(vectors)
    return np.ldexp(np.round(mantissa * _PARTS) / _PARTS, exponent)


def _computing(functions: list[Function]) -> list[Function]:
    """The functions that compute: without ``noalias`` LLVM puts them into the wrapper, behind its checks of shapes."""
    found = [f for f in functions if f.name.startswith("__tvm_parallel_lambda") or "compute_" in f.name]
    if not any("compute_" in f.name for f in found):
        found += [f.after_checks(_REFUSAL) for f in functions if f.name == _WRAPPER]
    return found


def _add_function(function: Function, machine: AsmFunction, amounts: defaultdict[str, float], hottest: float) -> float:
    """Add one function's amounts; returns the cycles of the hottest block so far."""
    constants = Constants(function)
    loops = loops_of(function, constants)
    runs = frequencies(function, constants, loops)
    add_machine_amounts(machine, function, loops, runs, amounts)
    _add_loops(loops, runs, amounts)
    innermost = innermost_loops(loops)
    for block, instructions in function.blocks.items():
        counts: defaultdict[str, float] = defaultdict(float)
        for line in instructions:
            for name, amount in classify(line):
                counts[name] += amount
        loop = innermost.get(block)
        chain = chain_cycles(instructions, counts) if loop is not None and len(loop.body) == 1 else 0.0
        by_resource = cycles_by_resource(counts, chain, spilled_values(function, block) if loop else 0.0)
        n, cycles = runs[block], runs[block] * total_cycles(by_resource)
        for name, amount in counts.items():
            amounts[f"n_{name}"] += n * amount
        for name, amount in by_resource.items():
            amounts[f"cycles_{name}"] += n * amount
        amounts["cycles"] += cycles
        amounts["instructions_run"] += n * len(instructions)
        amounts["instructions_text"] += len(instructions)
        if cycles > hottest:
            hottest = cycles
            amounts["hottest_cycles"] = total_cycles(by_resource)
            amounts["hottest_trips"] = loop.trips if loop else 1.0
            amounts["hottest_instructions"] = len(instructions)
    return hottest


def _add_loops(loops: list[Loop], runs: dict[str, float], amounts: defaultdict[str, float]) -> None:
    for loop in loops:
        amounts["loop_runs"] += runs[loop.header]
        amounts["loop_entries"] += runs[loop.header] / (loop.trips or 1.0)
        amounts["unknown_loops"] += loop.trips == 0
