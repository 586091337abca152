"""Allocations: which tensors the ops of a stage take and let go, one after the other, in each pass of a micro-batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from cdmpp.plans.caching_allocator import Block, CachingAllocator
from cdmpp.steps.step_graph import Op, RankGraph
from cdmpp.steps.transforms.recompute import run_order

Tensor = tuple[int, str]
"""Number of a run and a word: its ``result``, what it saves beside (``own``), or its ``workspace``."""


@dataclass(frozen=True)
class Moment:
    """At this moment an op runs: it takes tensors, then lets go of those that nobody reads any more."""

    taken: tuple[tuple[Tensor, int], ...]
    """Tensors with their bytes."""
    freed: tuple[tuple[Tensor, bool], ...]
    """Tensors, and whether another stream used them."""


@dataclass(frozen=True)
class Allocations:
    """These are the moments of the passes of one micro-batch."""

    forward: tuple[Moment, ...]
    backward: tuple[Moment, ...]

    @classmethod
    def of(
        cls, rank: RankGraph, recomputed: tuple[str, ...] = (), exchanges: Callable[[Op], bool] = lambda _: False
    ) -> Allocations:
        """Follow the ops of a rank.

        Args:
            rank: the ops of one micro-batch; a result lives until its last reader has run.
            recomputed: names of modules that run again in the backward pass.
            exchanges: whether a collective reads the workspace of an op, and writes or reads its result.
        """
        ops, runs = rank.ops, run_order(rank, recomputed)
        ends, sizes = lives(ops, runs)
        ending = defaultdict[int, list[Tensor]](list)
        for tensor, end in ends.items():
            ending[end].append(tensor)
        moments = list[Moment]()
        for run in range(len(runs)):
            taken = [
                (name, sizes[name]) for name in ((run, "workspace"), (run, "result"), (run, "own")) if name in sizes
            ]
            freed = [(name, name[1] != "own" and exchanges(ops[runs[name[0]][0]])) for name in ending[run]]
            moments.append(Moment(tuple(taken), tuple(freed)))
        first = next((run for run, (place, _) in enumerate(runs) if ops[place].phase != "forward"), len(runs))
        first = min(first, next((run for run, (_, again) in enumerate(runs) if again), len(runs)))
        return cls(tuple(moments[:first]), tuple(moments[first:]))


def lives(ops: tuple[Op, ...], runs: list[tuple[int, bool]]) -> tuple[dict[Tensor, int], dict[Tensor, int]]:
    """Return the last run that needs each tensor, and its bytes."""
    latest = dict[int, int]()
    ends, sizes = dict[Tensor, int](), dict[Tensor, int]()
    for run, (place, again) in enumerate(runs):
        op = ops[place]
        for source in (*op.inputs, *op.held):
            if source in latest:
                made = latest[source]
                is_own = op.phase == "backward" and not again and op.forward == runs[made][0]
                if not is_own or (made, "own") not in ends:
                    ends[made, "result"] = run
                if is_own:
                    ends[made, "own"] = run
                    if _keeps_result(ops[runs[made][0]]):
                        ends[made, "result"] = run
        result = op.output_bytes if op.result_bytes is None else op.result_bytes
        for name, size in (("workspace", op.workspace_bytes), ("result", result), ("own", op.output_bytes - result)):
            if size:
                sizes[run, name] = size
                ends[run, name] = run
        latest[place] = run if op.output_bytes else latest.get(op.inputs[0], run) if op.inputs else run
    return {name: end for name, end in ends.items() if name in sizes}, sizes


def _keeps_result(op: Op) -> bool:
    """Return True if the op's own backward pass reads its result too."""
    return (op.own_saved_bytes or 0) >= op.output_bytes


@dataclass
class Pass:
    """It runs passes of micro-batches on an allocator."""

    allocator: CachingAllocator
    late: int = 0
    """Moments by which the host is ahead of the device."""

    def __post_init__(self) -> None:
        self.live = dict[tuple[int, int, Tensor], Block]()

    def run(self, moments: tuple[Moment, ...], stage: int, batch: int) -> None:
        """Run one pass of a micro-batch of a stage."""
        for one in moments:
            self.allocator.pass_time()
            for name, size in one.taken:
                self.live[stage, batch, name] = self.allocator.take(size)
            for name, is_exchanged in one.freed:
                self.allocator.free(self.live.pop((stage, batch, name)), self.late if is_exchanged else 0)
