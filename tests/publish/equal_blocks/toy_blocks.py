"""Equal blocks of round numbers, and a replay of their plans, task by task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.peers.equal_blocks.columns import BlockPlans, Shape
from benchmarks.peers.equal_blocks.links import Host, Tier
from benchmarks.peers.equal_blocks.way import BlockCosts, Way
from cdmpp.plans.schedules import LOOPED, SCHEDULES
from cdmpp.simulate import Task, simulate

MS, MB = 1e-3, 1e6
TIER = Tier(lambda _, sizes, ranks: np.asarray(sizes) / 1e9 * (2 - 2 / ranks), 64)
"""1 GB/s, rings."""
HOST = Host(lambda sizes: np.asarray(sizes) / 1e9, 1e12)
BLOCK = {
    "forward_s": 2 * MS, "backward_s": 4 * MS, "again_s": MS, "forward_memory_s": 0.5 * MS,
    "backward_memory_s": MS, "forward_split_s": (0.25 * MS, 0.5 * MS), "backward_split_s": (0.5 * MS, 0.75 * MS),
    "forward_link_s": (0.25 * MS, 0.5 * MS), "backward_link_s": (0.5 * MS, 0.75 * MS), "message_bytes": 0.5 * MB,
    "saved_bytes": 8 * MB, "working_bytes": 10 * MB, "input_bytes": 0.0, "result_gradient_bytes": 3 * MB,
    "weight_bytes": 4 * MB, "gradient_bytes": 4 * MB, "whole_gradient_bytes": 8 * MB, "state_bytes": 24 * MB,
}  # fmt: skip


@dataclass(frozen=True)
class ToyBlocks:
    """The same costs for any way but for the size of a micro-batch."""

    count: int = 8
    numbers: tuple[tuple[str, object], ...] = tuple(BLOCK.items())

    def costs(self, tp: int, ways: Sequence[Way]) -> BlockCosts:
        """Costs grow with the micro-batch, and shrink with ``tp``, but for weights."""
        each = []
        for way in ways:
            scale = way.micro_batch / tp
            fixed = {"weight_bytes", "gradient_bytes", "whole_gradient_bytes", "state_bytes"}
            each.append([np.asarray(one) * (1 / tp if name in fixed else scale) for name, one in self.numbers])
        return BlockCosts(*(np.array(one, np.float64).T for one in zip(*each, strict=True)))

    def update_s(self, tp: int, shards: int) -> float:
        """One millisecond for a whole block."""
        return MS / tp / shards


def plans(shape: Shape, many: int, **flags: bool) -> BlockPlans:
    """One plan, whose stages have a network of their own."""
    names = ("shards", "overlaps", "weights_out", "activations_out", "states_out")
    zero, own = np.zeros(1, np.int64), {name: np.array([flags.get(name, False)]) for name in names}
    return BlockPlans(shape, zero, zero, np.array([many]), **own, message_tier=zero + 1, replica_tier=zero)


def orders(shape: Shape, many: int) -> list[list[tuple[int, bool, int]]]:
    """Stage, whether it is a forward pass, and micro-batch, of each rank in its order."""
    if shape.stages == 1:
        kind = SCHEDULES["1f1b"]()
        return [
            [(rank, one.kind == "forward", one.micro_batch) for one in kind.actions(rank, shape.pp, many)]
            for rank in range(shape.pp)
        ]
    kind = LOOPED["interleaved1f1b"](shape.stages)
    return [
        [(one.stage, one.kind == "forward", one.micro_batch) for one in kind.actions(rank, shape.pp, many)]
        for rank in range(shape.pp)
    ]


def replay_s(
    shape: Shape, many: int, ahead: tuple[np.ndarray, np.ndarray], back: tuple[np.ndarray, np.ndarray],
    exchange_s: float = 0.0, orders=orders,
) -> float:  # fmt: skip
    """Replay a step, without its update.

    ``ahead``, ``back``: seconds of a block inside a stage and of its last one, and of the copies meanwhile.
    ``exchange_s``: of the gradients of one block, which overlap.
    """
    tasks = [*_tasks(shape, many, ahead, back, exchange_s, orders)]
    return simulate(tasks).makespan_s


def _tasks(shape, many, ahead, back, exchange_s, orders) -> Iterator[Task]:
    per, last = shape.blocks_per_stage, shape.pp * shape.stages - 1
    for rank, order in enumerate(orders(shape, many)):
        before: tuple = ()
        counts: dict[int, int] = {}
        exchanged: tuple = ()
        for stage, is_forward, batch in order:
            block_s, copy_s = ahead if is_forward else back
            edges = [per - 1] if is_forward else [0]
            if is_forward:
                needs = ((stage - 1, True, batch, per - 1, "end"),) if stage else ()
            else:
                needs = ((stage + 1, False, batch, per - 1, "end"),) if stage < last else ()
            if not is_forward:
                counts[stage] = counts.get(stage, 0) + 1
            for block in range(per):
                row, key = int(block in edges), (stage, is_forward, batch, block)
                after = (*before, *(needs if block == 0 else ()))
                yield Task((*key, "run"), float(block_s[row]), (("device", rank),), after)
                yield Task((*key, "copy"), float(copy_s[row]), (("host", rank),), after)
                yield Task((*key, "end"), 0.0, (), ((*key, "run"), (*key, "copy")))
                before = ((*key, "end"),)
                if exchange_s and not is_forward and counts[stage] == many:
                    yield Task((*key, "sum"), exchange_s, (("replicas", rank),), (*before, *exchanged))
                    exchanged = ((*key, "sum"),)


def costs_of(**changes: object) -> BlockCosts:
    """Costs of one plan with some other numbers."""
    found = ToyBlocks().costs(1, [Way(1)])
    return replace(found, **{name: np.atleast_1d(np.asarray(one, np.float64)) for name, one in changes.items()})
