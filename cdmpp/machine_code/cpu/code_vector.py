"""Code vector: numbers of a CPU program that only its compiler knows, read from its LLVM IR and its machine code.

How LLVM unrolled, vectorised and spilled a program is not in its compact AST, and often decides the latency.
How often x86-64 code runs is not guessed: what decides its branches is carried out (``native/runner.h``). Loops of
AArch64 code are matched with those of the IR, whose branches are carried out (``native/nesting.h``).
"""

from __future__ import annotations

import numpy as np

from cdmpp.devices.cores import Core
from cdmpp.errors import DataError
from cdmpp.machine_code.cpu.code_features import CODE_FEATURES
from cdmpp.machine_code.cpu.native import native_amounts

_PARTS = 2.0**15


def code_vector(llvm_ir: str, assembly: str, core: Core) -> np.ndarray:
    """Return (CODE_WIDTH,) float32 of one program on ``core``, from its optimised LLVM IR and the assembly of it.

    Raises:
        DataError: the assembly is of neither x86-64 nor AArch64, or lacks a function of the IR.
    """
    amounts = native_amounts(llvm_ir, assembly, core)
    if not amounts["instructions_text"]:
        raise DataError("no function of the compiled module computes anything that can be counted")
    amounts["hottest_share"] = amounts["hottest_total"] / max(amounts["cycles"], 1.0)
    amounts["hottest_machine_share"] = amounts["hottest_machine_total"] / max(amounts["machine_cycles"], 1.0)
    values = np.array([amounts[feature.name] for feature in CODE_FEATURES], np.float64)
    plain = np.array([feature.plain for feature in CODE_FEATURES])
    return rounded(np.where(plain, values, np.log2(1.0 + values))).astype(np.float32)


def rounded(vectors: np.ndarray) -> np.ndarray:
    """Round to as many digits as matter: less than a thousandth is lost, files are a third smaller."""
    mantissa, exponent = np.frexp(vectors)
    return np.ldexp(np.round(mantissa * _PARTS) / _PARTS, exponent)
