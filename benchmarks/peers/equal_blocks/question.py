"""BlockQuestion: the best plans for equal blocks. All plans are judged, shape by shape; few are kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchmarks.peers.equal_blocks.closed_form import BlockStep, step
from benchmarks.peers.equal_blocks.columns import BlockPlans, Flags, Shape
from benchmarks.peers.equal_blocks.links import Host, Tier
from benchmarks.peers.equal_blocks.memory import BlockMemory, memory
from benchmarks.peers.equal_blocks.way import EXCHANGES, FULL, OVERLAPS, RECOMPUTED, BlockCosts, BlockSource, Way, ways
from cdmpp.errors import UsageError
from cdmpp.plans.candidates import divisors
from cdmpp.platform.limits import Limits, fitting

_COUNT, _BYTES = Limits(1, 2**20), Limits(0, 1e15, "bytes", whole=False, above=True)


@dataclass(frozen=True)
class BlockPlan:
    """One plan."""

    shape: Shape
    way: Way
    micro_batches: int
    shards: bool
    overlaps: bool
    weights_out: bool
    activations_out: bool
    states_out: bool
    message_tier: int
    replica_tier: int


@dataclass(frozen=True)
class Space:
    """Settings that are tried, next to all shapes and micro-batches. As it is made: all of them."""

    recompute: tuple[str, ...] = RECOMPUTED
    exchanges: tuple[str, ...] = EXCHANGES
    overlaps: tuple[str, ...] = OVERLAPS
    overlaps_replicas: tuple[bool, ...] = (False, True)
    host: bool = True
    """True if weights, results and states may lie in the memory of the host."""
    partial_rounds: bool = False
    """True if ranks of several stages may run numbers of micro-batches that are no multiple of the stages of the
    pipeline. No framework does: its order would wait for itself. Turns that are missing then count as idle."""

    def has(self, way: Way) -> bool:
        """Return True if it holds a way."""
        return way.recompute in self.recompute and way.exchange in self.exchanges and way.overlap in self.overlaps


@dataclass(frozen=True)
class JudgedBlocks:
    """Plans of one shape that can be, with their costs."""

    plans: BlockPlans
    ways: tuple[Way, ...]
    costs: BlockCosts
    """Costs of the blocks of each plan."""
    step: BlockStep
    memory: BlockMemory

    def plan(self, row: int) -> BlockPlan:
        """Make the plan of one row."""
        own = self.plans
        return BlockPlan(
            own.shape, self.ways[int(own.way[row])], int(own.micro_batches[row]), bool(own.shards[row]),
            bool(own.overlaps[row]), bool(own.weights_out[row]), bool(own.activations_out[row]),
            bool(own.states_out[row]), int(own.message_tier[row]), int(own.replica_tier[row]),
        )  # fmt: skip


@dataclass(frozen=True)
class BestBlocks:
    """The fastest plans of a question."""

    plans: tuple[BlockPlan, ...]
    """The fastest first."""
    step_s: tuple[float, ...]
    asked: int
    """All plans, with those that cannot be."""
    fit: int
    """Plans that can be and fit into memory."""


@dataclass(frozen=True)
class BlockQuestion:
    """Which way to train equal blocks on ``ranks`` devices.

    ``UsageError`` for numbers that cannot be, and for ``space.host`` without a host.
    """

    source: BlockSource
    tiers: tuple[Tier, ...]
    """Networks; any of them may carry exchanges of any kind."""
    ranks: int
    global_batch: int
    """Examples of one step of all ranks."""
    heads: int
    """Heads of attention, which ranks that divide a block divide evenly."""
    memory_limit_bytes: float
    host: Host | None = None
    """The memory of the host; None: nobody knows its link, and nothing may lie there."""
    space: Space = Space()
    is_nearest: bool = False
    """True if the ranks of a block use the first network that joins them, and stages and replicas the last one; else
    every network is tried for each."""

    def __post_init__(self) -> None:
        for name in ("ranks", "global_batch", "heads"):
            fitting(name, getattr(self, name), int, _COUNT)
        fitting("memory_limit_bytes", self.memory_limit_bytes, float, _BYTES)
        if not self.tiers:
            raise UsageError("tiers is empty: give at least one network")
        if self.space.host and self.host is None:
            raise UsageError(
                "weights, results or states in the memory of the host, whose link nobody knows for this device: give "
                "host, or a space without it (host=False)"
            )

    def shapes(self) -> Iterator[Shape]:
        """Yield all ways to divide the ranks, with the stages of each."""
        for tp in divisors(self.ranks):
            if self.heads % tp:
                continue
            for pp in divisors(self.ranks // tp):
                dp = self.ranks // tp // pp
                if self.source.count % pp or self.global_batch % dp:
                    continue
                blocks = self.source.count // pp
                yield from (Shape(tp, pp, dp, stages, blocks) for stages in (divisors(blocks) if pp > 1 else (1,)))

    @cached_property
    def _known(self) -> dict[int, tuple[tuple[Way, ...], BlockCosts]]:
        return {}

    def ways(self, tp: int) -> tuple[Way, ...]:
        """Return the ways in which ``tp`` ranks may run a block, at all micro-batches."""
        joining = [number for number, tier in enumerate(self.tiers) if tp == 1 or tier.joins(tp)]
        taken = {joining[0] if joining else 0} if self.is_nearest else {*joining}
        return tuple(one for one in self._ways(tp) if one.tier in taken and joining)

    def _ways(self, tp: int) -> list[Way]:
        """The same with those on networks that do not join so many ranks."""
        every = ways(tp, divisors(self.global_batch), len(self.tiers))
        return [one for one in every if self.space.has(one)]

    def costs(self, tp: int) -> tuple[tuple[Way, ...], BlockCosts]:
        """Return these ways, with what a block takes in each."""
        if tp not in self._known:
            own = self.ways(tp)
            self._known[tp] = own, self.source.costs(tp, own)
        return self._known[tp]

    def plans(self, shape: Shape) -> BlockPlans:
        """List all plans of a shape, also those that cannot be."""
        each = self.global_batch // shape.dp
        own, _ = self.costs(shape.tp)
        fits = np.flatnonzero([each % one.micro_batch == 0 for one in own])
        many = np.array([each // own[place].micro_batch for place in fits], np.int64)
        axes = np.arange(len(fits)), *self._axes(shape)
        grid = [one.ravel() for one in np.meshgrid(*map(np.asarray, axes), indexing="ij")]
        place, shards, overlaps, weights, activations, states, messages, replicas = grid
        is_full = np.array([own[one].recompute == FULL for one in fits], np.bool_)
        split = np.array([own[one].tier for one in fits], np.int64)
        kept = ~(is_full[place] & activations)  # the input of a block is little, and nobody moves it
        found = BlockPlans(
            shape, fits[place], split[place], many[place], shards, overlaps, weights, activations, states, messages,
            replicas,
        )  # fmt: skip
        return found.taken(kept)

    def _axes(self, shape: Shape) -> tuple[Sequence[object], ...]:
        """Return the settings of a shape that do not change its blocks."""
        out, dp = ((False, True) if self.space.host else (False,)), shape.dp > 1
        tiers = range(len(self.tiers))[-1 if self.is_nearest else 0 :]
        return (
            (False, True) if dp else (False,), self.space.overlaps_replicas if dp else (False,), out, out, out,
            tiers if shape.pp > 1 else (0,), tiers if dp else (0,),
        )  # fmt: skip

    def count(self, shape: Shape) -> int:
        """Count all plans of a shape, also those on networks that do not join its ranks."""
        each, axes = self.global_batch // shape.dp, self._axes(shape)
        ways = self.ways(shape.tp) if self.is_nearest else self._ways(shape.tp)
        own = [one.recompute == FULL for one in ways if each % one.micro_batch == 0]
        return math.prod(map(len, axes)) * (len(own) * len(axes[3]) - sum(own) * (len(axes[3]) - 1)) // len(axes[3])

    def can_be(self, plans: BlockPlans) -> Flags:
        """Return which plans fit their networks and rounds, and leave blocks elsewhere while others run."""
        shape, found = plans.shape, np.ones(len(plans), np.bool_)
        for number, tier in enumerate(self.tiers):
            joined = np.ones(len(plans), np.int64)
            for ranks, own in ((shape.tp, plans.split_tier), (shape.pp, plans.message_tier),
                               (shape.dp, plans.replica_tier)):  # fmt: skip
                joined *= np.where(own == number, ranks, 1)
            each, places = np.unique(joined, return_inverse=True)
            found &= np.array([tier.joins(ranks) for ranks in each.tolist()], np.bool_)[places.ravel()]
        if shape.stages > 1 and not self.space.partial_rounds:
            found &= plans.micro_batches % shape.pp == 0
        if shape.blocks < 3:
            found &= ~(plans.weights_out | plans.activations_out | plans.states_out)
        return found

    def judged(self, shape: Shape) -> JudgedBlocks:
        """Judge the plans of a shape that can be and fit: memory first, then time."""
        own, costs = self.costs(shape.tp)
        plans = self.plans(shape)
        plans = plans.taken(self.can_be(plans))
        held = memory(plans, costs.taken(plans.way))
        fits = held.device_bytes <= self.memory_limit_bytes
        if self.host is not None:
            fits &= held.host_bytes <= self.host.memory_bytes
        plans = plans.taken(fits)
        of_blocks, held = costs.taken(plans.way), BlockMemory(held.device_bytes[fits], held.host_bytes[fits])
        both_s = np.array([self.source.update_s(shape.tp, shards) for shards in (1, shape.dp)])
        taken = step(plans, of_blocks, both_s[plans.shards.astype(np.int64)], self.tiers, self.host)
        return JudgedBlocks(plans, own, of_blocks, taken, held)

    def best(self, count: int = 1) -> BestBlocks:
        """Judge all plans, and return the ``count`` fastest; of equal ones those of earlier shapes and rows."""
        fitting("count", count, int, _COUNT)
        kept, asked, fit = list[tuple[float, int, int, BlockPlan]](), 0, 0
        for number, shape in enumerate(self.shapes()):
            asked += self.count(shape)
            judged = self.judged(shape)
            fit += len(judged.plans)
            step_s = judged.step.step_s
            rows = np.argsort(step_s, kind="stable")[:count].tolist()
            kept += [(float(step_s[row]), number, row, judged.plan(row)) for row in rows]
            kept = sorted(kept, key=lambda one: one[:3])[:count]
        return BestBlocks(tuple(one[3] for one in kept), tuple(one[0] for one in kept), asked, fit)
