"""One warp of a kernel, executed: which instructions it issues, and what each moves.

Integers, predicates and addresses are computed for all 32 lanes. Of lanes that went apart those at the smallest address
run first, so that they meet again. What was loaded, or computed in floats, is unknown, and so is all that comes of it;
but of indices and flags something is assumed (``sass_rows``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.errors import DataError
from cdmpp.machine_code.gpu.launch import Launch, abi_of
from cdmpp.machine_code.gpu.native import native_library
from cdmpp.machine_code.gpu.sass import SassKernel

LINE_SECTORS = 4
"""Sectors of 32 bytes in a line of the first-level cache."""
TRACE = np.dtype([("at", "<i4"), ("lanes", "<u2"), ("units", "<u2"), ("fresh", "<u2"), ("merged", "<u2")])
"""One issued instruction: its place in the kernel and the lanes that take part.

``units``: sectors of 32 bytes of a global or local access, passes through the banks of a shared one. ``fresh``: sectors
of global memory that this warp had not touched before. ``merged``: lines of 128 bytes of a global or local access; of a
shared one its passes, were a warp's halves served together.
"""
_FAULTS = (
    "instruction {at} branches on data",
    "instruction {at} returns to an unknown address",
    "the address of instruction {at} depends on data",
    "instruction {at} leaves the stack of {stack} bytes",
)
"""Reasons why a warp cannot be executed; C++ counts them from one."""


@dataclass(frozen=True)
class WarpRun:
    """One warp issued these instructions, in order."""

    trace: np.ndarray
    """(steps,) of ``TRACE``."""
    ended: bool
    """False: it was stopped after so many steps as were allowed."""


def run_warp(
    kernel: SassKernel,
    rows: np.ndarray,
    launch: Launch,
    block: int,
    warp: int,
    limit: int,
    literals: bytes = b"",
) -> WarpRun:
    """Execute warp ``warp`` of block ``block`` of the grid, ``limit`` instructions at most.

    ``rows`` are ``rows_of(kernel)``, ``literals`` constant bank 2 of the kernel.

    Raises:
        DataError: an address depends on data, or a branch of which nobody knows where it goes.
    """
    arguments_at, stack_at = abi_of(kernel.arch)
    numbers = np.array(
        [len(rows), kernel.stack_bytes, arguments_at, stack_at, len(literals), *launch.grid, *launch.block, block, warp]
        + [limit],
        np.int64,
    )
    table, steps = np.ascontiguousarray(rows, np.int64), np.zeros(limit, TRACE)
    ended, where = np.zeros(1, np.int64), np.zeros(1, np.int64)
    pointers = [array.ctypes.data for array in (numbers, steps, ended, where)]
    count = native_library().warp_steps(table.ctypes.data, literals, *pointers)
    if count < 0:
        raise DataError(_FAULTS[-2 - count].format(at=int(where[0]), stack=kernel.stack_bytes))
    return WarpRun(steps[:count].copy(), bool(ended[0]))
