"""Operations: what machine instructions ask of an execution core, whatever their instruction set."""

from __future__ import annotations

OPERATIONS: dict[str, str] = {
    "fma": "fma",
    "fadd": "fadd",
    "fmax": "fmax",
    "divide": "divide",
    "gather": "gather",
    "scatter": "scatter",
    "light_shuffle": "shuffle",
    "shuffle": "shuffle",
    "insert": "shuffle",
    "convert": "convert",
    "compare": "compare",
    "multiply_low": "vector_multiply",
    "vector_multiply": "vector_multiply",
    "vector_int": "vector_int",
    "mask_transfer": "mask",
    "mask": "mask",
    "transfer": "transfer",
    "move": "move",
    "call": "call",
    "branch": "branch",
    "int_divide": "int_divide",
    "int_multiply": "int_multiply",
    "int": "int",
    "int_move": "int_move",
}
"""Operation whose ports and latency a core's sheet gives -> the kind it is counted as (``code_features.KINDS``).

``light_shuffle`` stays within 128 bits, ``shuffle`` crosses them, ``insert`` moves one element; ``multiply_low`` is the
slow product of 32-bit lanes; ``mask_transfer`` moves a mask, ``transfer`` an integer, to or from a vector register.
``move`` and ``int_move`` are between registers, or all there is to a load or store.
"""
