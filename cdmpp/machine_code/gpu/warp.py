"""One warp of a kernel, executed: which instructions it issues, and what each moves. Twin of ``native/warp.h``.

Integers, predicates and addresses are computed for all 32 lanes. Of lanes that went apart those at the smallest address
run first, so that they meet again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.machine_code.gpu.sass import INSTRUCTION_BYTES, SassKernel
from cdmpp.machine_code.gpu.sass_fields import Kind
from cdmpp.machine_code.gpu.warp_arithmetic import compute
from cdmpp.machine_code.gpu.warp_memory import LEAVES_STACK, UNKNOWN_ADDRESS, move
from cdmpp.machine_code.gpu.warp_state import LANES, Launch, Row, WarpState

TRACE = np.dtype([("at", "<i4"), ("lanes", "<u2"), ("units", "<u2"), ("fresh", "<u2"), ("merged", "<u2")])
"""One issued instruction: its place in the kernel and the lanes that take part.

``units``: sectors of 32 bytes of a global or local access, passes through the banks of a shared one. ``fresh``: sectors
of global memory that this warp had not touched before. ``merged``: lines of 128 bytes of a global or local access; of a
shared one its passes, were a warp's halves served together.
"""
_BRANCHES, _RETURNS = "instruction {at} branches on data", "instruction {at} returns to an unknown address"
FAULTS = (_BRANCHES, _RETURNS, UNKNOWN_ADDRESS, LEAVES_STACK)
"""Why a warp cannot be executed; C++ counts them from one."""


@dataclass(frozen=True)
class WarpRun:
    """What one warp issued, in order."""

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
    state, place = WarpState(kernel, launch, block, warp, literals), np.zeros(LANES, np.int64)
    named = [Row(*row) for row in rows.tolist()]
    steps: list[tuple[int, ...]] = []
    while state.alive.any() and len(steps) < limit:
        at = int(place[state.alive].min())
        if at >= len(named):
            break
        here = state.alive & (place == at)
        place[here] = at + 1
        steps.append((at, *_step(state, named, at, here, place)))
    return WarpRun(np.array(steps, TRACE), len(steps) < limit)


def _step(state: WarpState, rows: list[Any], at: int, here: np.ndarray, place: np.ndarray) -> tuple[int, ...]:
    """Lanes, units, fresh and merged of one instruction of the lanes ``here``."""
    row = rows[at]
    guard, sure = state.read_predicate(row.guard, row.guard_not)
    if row.kind in (Kind.BRANCH, Kind.RETURN, Kind.EXIT):
        active = here & _way(row, guard, sure, here, at)
        _jump(state, row, at, active, place, len(rows))
        return int(active.sum()), 0, 0, 0
    active = here & (guard | ~sure)
    numbers = (0, 0, 0)
    if active.any() and row.kind in (Kind.LOAD, Kind.STORE, Kind.COPY):
        numbers = move(state, row, active, sure, at)
    elif active.any():
        compute(state, row, active, sure)
    return (int(active.sum()), *numbers)


def _way(row: Any, guard: np.ndarray, sure: np.ndarray, here: np.ndarray, at: int) -> np.ndarray:
    """The guard of a jump; where that depends on data the usual way, see ``sass_rows``."""
    if sure[here].all():
        return guard
    if row.kind != Kind.BRANCH or not row.option:
        raise DataError(_BRANCHES.format(at=at))
    return np.full(LANES, row.option == 1)


def _jump(state: WarpState, row: Any, at: int, active: np.ndarray, place: np.ndarray, length: int) -> None:
    if row.kind == Kind.EXIT:
        state.alive = state.alive & ~active
    elif row.kind == Kind.BRANCH:
        taken, known = state.read_predicate(row.predicate, row.predicate_not)
        if not known[active].all():
            raise DataError(_BRANCHES.format(at=at))
        place[active & taken] = row.target
    else:
        value, known = state.source(row, 0)
        if not known[active].all():
            raise DataError(_RETURNS.format(at=at))
        target = value.astype(np.int64) // INSTRUCTION_BYTES
        state.alive = state.alive & ~(active & ((target <= 0) | (target >= length)))
        place[active] = target[active]
