"""Operation: what one machine instruction asks of an execution core, whatever its instruction set."""

from __future__ import annotations

from typing import NamedTuple

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
"""What a core's sheet tells ports and latencies of -> what it is counted as (``code_features.KINDS``).

``light_shuffle`` stays within 128 bits, ``shuffle`` crosses them, ``insert`` moves one element; ``multiply_low`` is the
slow product of 32-bit lanes; ``mask_transfer`` moves a mask, ``transfer`` an integer, to or from a vector register.
``move`` and ``int_move`` are between registers, or all there is to a load or store.
"""


class Operation(NamedTuple):
    """One instruction."""

    name: str
    """One of ``OPERATIONS``."""
    reads: tuple[str, ...]
    """Registers, one name for all their widths; ``flags`` too."""
    writes: tuple[str, ...]
    address: tuple[str, int] | None
    """Base, index and scale as text, and displacement in bytes; None where memory is not touched."""
    address_registers: tuple[str, ...]
    loads: bool
    stores: bool
    width: int
    """Bytes of its widest register; 8 for integers."""
    moved: int
    """Bytes that a load or store moves."""
    lanes: int
    """Of a gather or scatter; 0 elsewhere."""
    scalar: bool
    """Arithmetic or a move of one float."""
    masked: bool
    """A load or store of the lanes that a mask register names."""
    spills: bool
    """On the stack, where values go that no register is left for."""
    terms: tuple[tuple[str, int], ...] = ()
    """Registers of the address with their factors; empty where they are not told apart from its text."""
    assigns: tuple[str, tuple[tuple[str, int], ...], int] | None = None
    """Register, terms and offset, where it becomes that sum: how one address follows from another."""

    @property
    def kind(self) -> str:
        """One of ``code_features.KINDS``."""
        return OPERATIONS[self.name]
