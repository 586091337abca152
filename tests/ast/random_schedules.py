"""Schedules of any workload, drawn step by step from a user's primitives: those that do not apply are left out."""

from __future__ import annotations

import random

import tvm
from tvm import s_tir

STEPS = 14


def random_schedule(module: tvm.IRModule, seed: int) -> tvm.IRModule:
    """Return a scheduled copy of ``module`` for a CPU; the same one for the same ``seed``."""
    draw, schedule = random.Random(seed), s_tir.Schedule(module)
    for _ in range(STEPS):
        step = draw.choice(_STEPS)
        try:
            blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
            step(schedule, draw.choice(blocks), draw)
        except (RuntimeError, ValueError, TypeError, IndexError):  # TVM refuses what does not apply
            continue
    return schedule.mod


def _loop(schedule, block, draw):
    return draw.choice(schedule.get_loops(block))


def _split(schedule, block, draw):
    loop = _loop(schedule, block, draw)
    schedule.split(loop, [None, draw.choice([2, 3, 4, 5, 8, 16])])


def _fuse(schedule, block, draw):
    loops = schedule.get_loops(block)
    first = draw.randrange(len(loops) - 1)
    schedule.fuse(*loops[first : first + draw.choice([2, 3])])


def _reorder(schedule, block, draw):
    loops = schedule.get_loops(block)
    schedule.reorder(*draw.sample(loops, min(len(loops), 3)))


def _vectorize(schedule, block, draw):
    schedule.vectorize(schedule.get_loops(block)[-1])


def _parallel(schedule, block, draw):
    schedule.parallel(schedule.get_loops(block)[0])


def _unroll(schedule, block, draw):
    schedule.unroll(_loop(schedule, block, draw))


def _annotate(schedule, block, draw):
    loop = schedule.get_loops(block)[0]
    schedule.annotate(loop, "pragma_auto_unroll_max_step", draw.choice([16, 64, 512]))
    schedule.annotate(loop, "pragma_unroll_explicit", 1)


def _cache_write(schedule, block, draw):
    written = schedule.cache_write(block, 0, "global")
    schedule.reverse_compute_at(written, _loop(schedule, block, draw))


def _cache_read(schedule, block, draw):
    read = schedule.cache_read(block, 0, "global")
    schedule.compute_at(read, _loop(schedule, block, draw))


def _compute_at(schedule, block, draw):
    schedule.compute_at(schedule.get_producers(block)[0], _loop(schedule, block, draw))


def _reverse_compute_at(schedule, block, draw):
    schedule.reverse_compute_at(schedule.get_consumers(block)[0], _loop(schedule, block, draw))


def _inline(schedule, block, draw):
    schedule.compute_inline(block)


def _rfactor(schedule, block, draw):
    schedule.rfactor(_loop(schedule, block, draw), draw.choice([0, -1]))


def _decompose(schedule, block, draw):
    schedule.decompose_reduction(block, _loop(schedule, block, draw))


_STEPS = (
    _split, _split, _split, _fuse, _fuse, _reorder, _vectorize, _parallel, _unroll, _annotate, _cache_write,
    _cache_read, _compute_at, _reverse_compute_at, _inline, _rfactor, _decompose, _decompose,
)  # fmt: skip
