"""A kernel carried out on a small grid: what each warp issues, and what its requests touch, with the data as they are.

Nothing is shared with the reader of the product but the text of the listing: operands, arithmetic, branches and memory
are this package's own, and its results are compared with those of the tensor program. What it does not know, it names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.counts.gpu.bits import BITS
from benchmarks.counts.gpu.floats import FLOATS
from benchmarks.counts.gpu.grid import Grid, NotKnownError, Read, is_register, is_truth, truth, word
from benchmarks.counts.gpu.memories import GlobalMemory, Memories, OutsideError, access, copy
from benchmarks.counts.gpu.operations import Run
from benchmarks.counts.gpu.paths import Paths, StuckError
from benchmarks.counts.gpu.whole import WHOLE
from cdmpp.errors import DataError
from cdmpp.machine_code.gpu.launch import Launch
from cdmpp.machine_code.gpu.sass import INSTRUCTION_BYTES, SassKernel, SassLine

MOST_STEPS = 120_000
_NOTHING = ("NOP", "LDGDEPBAR", "DEPBAR", "YIELD", "MEMBAR", "ERRBAR", "CCTL")
"""They order what other instructions do; here each is done at once."""
_ARITHMETIC = {**WHOLE, **BITS, **FLOATS}


@dataclass(frozen=True)
class Carried:
    """What a grid did: (warps, instructions of the text) each."""

    issued: np.ndarray
    """How often a warp issued an instruction."""
    lanes: np.ndarray
    """Lanes that took part, in all of these."""
    taken: np.ndarray
    """Sectors of 32 bytes of its requests to global and local memory, passes of those to shared memory."""


Control = Callable[[Grid, Paths, np.ndarray, np.ndarray], None]


def carry_out(
    kernel: SassKernel, launch: Launch, memory: GlobalMemory, arguments: Sequence[int], literals: bytes = b""
) -> Carried:
    """Execute ``kernel`` on all of ``launch``; ``arguments`` are addresses, and ``memory`` changes.

    Raises:
        DataError: an instruction that is not known, an access outside the buffers, or more than ``MOST_STEPS`` steps.
    """
    grid = Grid(kernel.arch, launch, kernel.stack_bytes, tuple(arguments), literals)
    memories = Memories(grid, memory, kernel.shared_bytes + launch.dynamic_shared_bytes)
    paths = Paths(grid.exists, launch.warps)
    issued, lanes, taken = (np.zeros((grid.warps, len(kernel.lines)), np.int64) for _ in range(3))
    made: dict[int, tuple[Read, Callable[[np.ndarray, np.ndarray], np.ndarray | None]]] = {}
    at = 0
    try:
        with np.errstate(all="ignore"):
            for _ in range(MOST_STEPS):
                if (at := paths.next_place()) < 0:
                    return Carried(issued, lanes, taken)
                if at not in made:
                    line = kernel.lines[at]
                    made[at] = truth(line.guard or "PT"), _made(line, grid, memories, paths)
                guard, run = made[at]
                warps = np.flatnonzero(paths.runs & (paths.at == at))
                mask = paths.mask[warps] & guard(grid, warps)
                issued[warps, at] += 1
                lanes[warps, at] += mask.sum(1)
                if (units := run(warps, mask)) is not None:
                    taken[warps, at] += units
    except (NotKnownError, OutsideError, StuckError, KeyError, ValueError, IndexError) as error:
        line = kernel.lines[min(at, len(kernel.lines) - 1)]
        text = f"{line.name} {', '.join(line.operands)}".strip()
        raise DataError(f"the instruction {text!r} at {at} is not carried out ({error})") from error
    raise DataError(f"the kernel takes more than {MOST_STEPS} steps")


def _made(
    line: SassLine, grid: Grid, memories: Memories, paths: Paths
) -> Callable[[np.ndarray, np.ndarray], np.ndarray | None]:
    opcode = line.opcode
    if opcode in ("LDG", "STG", "LDS", "STS", "LDL", "STL", "LDGSTS"):
        move = copy(line) if opcode == "LDGSTS" else access(line)

        def moves(warps: np.ndarray, mask: np.ndarray) -> np.ndarray:
            units = move(grid, memories, warps, mask)
            paths.at[warps] += 1
            return units

        return moves
    if opcode in _NOTHING:
        return lambda warps, mask: paths.branch(warps, np.zeros_like(mask), np.zeros(len(warps), np.int64))
    if control := _control(line):
        return lambda warps, mask: control(grid, paths, warps, mask)
    arithmetic = _arithmetic(line)

    def computes(warps: np.ndarray, mask: np.ndarray) -> None:
        arithmetic(grid, warps, mask)
        paths.at[warps] += 1

    return computes


def _arithmetic(line: SassLine) -> Run:
    name = line.opcode
    if name not in _ARITHMETIC and name.startswith("U"):
        name = name[1:]
    if name not in _ARITHMETIC:
        raise NotKnownError("nothing is known of it")
    return _ARITHMETIC[name](line)


def _target(line: SassLine) -> int:
    return int(next(text for text in line.operands if text.startswith("0x")), 16) // INSTRUCTION_BYTES


def _control(line: SassLine) -> Control | None:
    """What changes where lanes go on."""
    name, operands = line.opcode, line.operands
    if name in ("BRA", "CALL"):
        return _branch(line)
    if name == "RET":
        back = word(operands[0].split()[0])
        return lambda grid, paths, warps, mask: _return(paths, warps, mask, back(grid, warps))
    if name == "EXIT":
        return lambda grid, paths, warps, mask: paths.end(warps, mask)
    if name == "BSSY":
        return lambda grid, paths, warps, mask: paths.gather(warps, operands[0], mask)
    if name == "BSYNC":
        return lambda grid, paths, warps, mask: paths.meet(warps, operands[0])
    if name == "BREAK":
        return _break(line)
    if name == "WARPSYNC":
        return _warp_barrier(line)
    if name == "BAR":
        if set(line.modifiers) - {"SYNC", "DEFER_BLOCKING"} or operands != ("0x0",):
            raise NotKnownError(line.name)
        return lambda grid, paths, warps, mask: paths.meet_block(warps)
    return None


def _break(line: SassLine) -> Control:
    *read, barrier = line.operands
    also = [truth(text) for text in read]

    def leave(grid: Grid, paths: Paths, warps: np.ndarray, mask: np.ndarray) -> None:
        for one in also:
            mask = mask & one(grid, warps)
        paths.leave(warps, barrier, mask)

    return leave


def _warp_barrier(line: SassLine) -> Control:
    if set(line.modifiers) - {"ALL"}:
        raise NotKnownError(line.name)
    wanted = word("0xffffffff" if "ALL" in line.modifiers else line.operands[0])
    return lambda grid, paths, warps, mask: paths.meet_all(
        warps, np.broadcast_to(wanted(grid, warps)[:, 0], len(warps))
    )


def _branch(line: SassLine) -> Control:
    """``BRA.DIV`` leaves where not all lanes that live are here."""
    if other := set(line.modifiers) - {"U", "DIV", "CONV", "REL", "NOINC"}:
        raise NotKnownError(f"modifier {sorted(other)[0]}")
    target, also = _target(line), [truth(text) for text in line.operands if is_truth(text)]
    if {"DIV", "CONV"} & set(line.modifiers):

        def together(grid: Grid, paths: Paths, warps: np.ndarray, mask: np.ndarray) -> None:
            apart = (paths.mask[warps] != paths.alive[warps]).any(1)
            if "CONV" in line.modifiers or apart.any():
                raise NotKnownError("lanes that are apart")
            paths.at[warps] += 1

        return together
    if any(map(is_register, line.operands)):
        raise NotKnownError("a register")

    def branch(grid: Grid, paths: Paths, warps: np.ndarray, mask: np.ndarray) -> None:
        for one in also:
            mask = mask & one(grid, warps)
        paths.branch(warps, mask, np.full(len(warps), target))

    return branch


def _return(paths: Paths, warps: np.ndarray, mask: np.ndarray, back: np.ndarray) -> None:
    targets = np.broadcast_to(back, mask.shape) // INSTRUCTION_BYTES
    first = np.take_along_axis(targets, mask.argmax(1)[:, None], 1)
    if (mask & (targets != first)).any():
        raise NotKnownError("lanes that return to different places")
    paths.branch(warps, mask, first[:, 0].astype(np.int64))
