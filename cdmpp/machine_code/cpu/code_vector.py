"""Code vector: numbers of a CPU program that only its compiler knows, read from its LLVM IR and its machine code.

How LLVM unrolled, vectorised and spilled a program is not in its compact AST, and often decides the latency.
How often code runs is not guessed: what decides its branches is carried out (``native/runner.h``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from cdmpp.devices.cores import Core
from cdmpp.errors import DataError
from cdmpp.machine_code.cpu.assembly import parse_assembly
from cdmpp.machine_code.cpu.code_features import CODE_FEATURES, EXTRA, RESOURCES
from cdmpp.machine_code.cpu.flow import FunctionFlow
from cdmpp.machine_code.cpu.instruction import classify
from cdmpp.machine_code.cpu.ir import Function, parse
from cdmpp.machine_code.cpu.machine import Amounts, add_machine_amounts
from cdmpp.machine_code.cpu.native import native_amounts, native_flows
from cdmpp.machine_code.cpu.nesting import machine_flow
from cdmpp.machine_code.cpu.tables import TOTALS
from cdmpp.machine_code.cpu.throughput import chain_cycles, cycles_by_resource, spilled_values

_PARTS = 2.0**15
_WRAPPER, _REFUSAL = "__tvm_ffi_main", "__tvm_set_raised"


def code_vector(llvm_ir: str, assembly: str, core: Core) -> np.ndarray:
    """(CODE_WIDTH,) float32 of one program on ``core``, from its optimised LLVM IR and the assembly made of it.

    Raises:
        DataError: the assembly is of neither x86-64 nor AArch64, or lacks a function of the IR.
    """
    amounts = native_amounts(llvm_ir, assembly, core) or readable_amounts(llvm_ir, assembly, core)
    if not amounts["instructions_text"]:
        raise DataError("no function of the compiled module computes anything that can be counted")
    amounts["hottest_share"] = amounts["hottest_total"] / max(amounts["cycles"], 1.0)
    amounts["hottest_machine_share"] = amounts["hottest_machine_total"] / max(amounts["machine_cycles"], 1.0)
    values = np.array([amounts[feature.name] for feature in CODE_FEATURES], np.float64)
    plain = np.array([feature.plain for feature in CODE_FEATURES])
    return rounded(np.where(plain, values, np.log2(1.0 + values))).astype(np.float32)


def readable_amounts(llvm_ir: str, assembly: str, core: Core) -> dict[str, float]:
    """The amounts of AArch64 programs, whose machine code runs as their IR does. Tests compare C++ with x86."""
    amounts: Amounts = defaultdict(float)
    machine = parse_assembly(assembly)
    functions = _computing(parse(llvm_ir))
    missing = [function.name for function in functions if function.name not in machine]
    if missing:
        raise DataError(
            f"no machine code of {missing[0]} that can be read: code vectors are of x86-64 and AArch64 "
            "programs, others are predicted from their ASTs alone"
        )
    in_c = all(machine[function.name].language == "x86_64" for function in functions)
    flows = native_flows(llvm_ir, assembly if in_c else "")
    if flows is None:
        raise DataError(
            "machine code is read by a library in C++, which this program's text or this machine keeps from it"
        )
    for function in functions:
        assembled, ir_flow = machine[function.name], flows[0][function.name]
        if function.name == _WRAPPER:
            assembled = assembled.after_checks(_REFUSAL)
        flow = flows[1][function.name] if in_c else machine_flow(assembled, function, ir_flow)
        add_machine_amounts(core, assembled, flow, amounts)
        _add_ir_amounts(function, ir_flow, amounts)
    return {name: amounts[name] for name in TOTALS}


def rounded(vectors: np.ndarray) -> np.ndarray:
    """To as many digits as matter: nothing below a thousandth of an amount, and files are a third smaller."""
    mantissa, exponent = np.frexp(vectors)
    return np.ldexp(np.round(mantissa * _PARTS) / _PARTS, exponent)


def _computing(functions: Sequence[Function]) -> list[Function]:
    """The functions that compute: without ``noalias`` LLVM puts them into the wrapper, behind its checks of shapes."""
    computing = [f for f in functions if f.name.startswith("__tvm_parallel_lambda") or "compute_" in f.name]
    if not any("compute_" in f.name for f in computing):
        computing += [f.after_checks(_REFUSAL) for f in functions if f.name == _WRAPPER]
    return computing


def _add_ir_amounts(function: Function, flow: FunctionFlow, amounts: Amounts) -> None:
    """Add one function's to ``amounts``, by the names of ``CODE_FEATURES``."""
    for header, entries in flow.entries.items():
        amounts["loop_runs"] += flow.times * flow.runs[header]
        amounts["loop_entries"] += flow.times * entries
    amounts["unknown_loops"] = max(amounts["unknown_loops"], float(flow.unknown > 0))
    innermost = {}
    for header in sorted(flow.bodies, key=lambda h: len(flow.bodies[h]), reverse=True):
        innermost.update(dict.fromkeys(flow.bodies[header], header))
    for block, instructions in function.blocks.items():
        counts: Amounts = defaultdict(float)
        for line in instructions:
            for name, amount in classify(line):
                counts[name] += amount
        around, runs = innermost.get(block), flow.times * flow.runs[block]
        chain = chain_cycles(instructions, counts) if around is not None and len(flow.bodies[around]) == 1 else 0.0
        by_resource = cycles_by_resource(counts, chain, spilled_values(function, block) if around else 0.0)
        cycles = max(by_resource[r.name] for r in RESOURCES) + sum(by_resource[e.name] for e in EXTRA)
        for name, amount in counts.items():
            amounts[f"n_{name}"] += runs * amount
        for name, amount in by_resource.items():
            amounts[f"cycles_{name}"] += runs * amount
        amounts["cycles"] += runs * cycles
        amounts["instructions_run"] += runs * len(instructions)
        amounts["instructions_text"] += len(instructions)
        if runs * cycles > amounts["hottest_total"]:
            amounts["hottest_total"] = runs * cycles
            amounts["hottest_cycles"] = cycles
            amounts["hottest_trips"] = flow.trips(around) if around else 1.0
            amounts["hottest_instructions"] = len(instructions)
