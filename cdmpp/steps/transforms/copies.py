"""Copies: what ranks do for each byte that FSDP gathers and scatters, besides waiting for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from cdmpp.errors import DataError
from cdmpp.simulate.task import check_seconds
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.step_graph import COPY, Op, RankGraph, StepGraph
from cdmpp.steps.transforms.edit import Edit, edited, moved_op

_GATHERED = ("all_gather",)
_SCATTERED = ("reduce_scatter", "all_reduce")
"""Kinds of exchanges of a traced FSDP job: gloo runs a reduce-scatter as an all-reduce."""
_NOTHING: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True)
class Copies:
    """Parameters are copied into and out of flat buffers, and gradients into one; hooks of each module run too."""

    gathered_s: float
    """Seconds for a byte of a gathered module."""
    scattered_s: float
    """Seconds for a byte of gradients that are scattered."""
    share: float = 0.0
    """Share of the device that a collective takes from what it computes meanwhile."""

    def __post_init__(self) -> None:
        check_seconds(self.gathered_s, "copies of a gathered byte")
        check_seconds(self.scattered_s, "copies of a scattered byte")
        if not 0 <= self.share < 1:
            raise DataError(f"collectives take {self.share} of a device: expected 0 to below 1")


def copies_of(sharded: StepGraph, plain: StepGraph) -> Copies:
    """Read the copies of a traced FSDP job: operators and pauses that a DDP job of the same model does not have.

    Args:
        sharded: traced under FSDP, contention-free.
        plain: traced under DDP, contention-free.

    Raises:
        DataError: a trace without gathers or scatters.
    """
    gathered, scattered = Counter[str](), 0
    for one in sharded.exchanges:
        phase = _phase(sharded.ranks[min(one.after)], one)
        if one.kind in _GATHERED:
            gathered[phase] += one.bytes
        elif one.kind in _SCATTERED and phase == "backward":
            scattered += one.bytes
    if not gathered["forward"] or not scattered:
        raise DataError("the trace has no gathers in its forward pass or no scatters behind its backward pass")
    more = {phase: _more_s(sharded, plain, phase) for phase in ("forward", "backward")}
    gathered_s = max(0.0, more["forward"]) / gathered["forward"]
    return Copies(gathered_s, max(0.0, more["backward"] - gathered_s * gathered["backward"]) / scattered)


def with_copies(
    graph: StepGraph,
    copies: Copies | Mapping[int, Copies],
    numbers: Iterable[int] | None = None,
    under_way_s: Mapping[int, float] = _NOTHING,
) -> StepGraph:
    """Add an op behind each all-gather, and one before each reduce-scatter.

    Args:
        graph: of a job under FSDP.
        copies: seconds of a byte, on all ranks or by rank; ranks that are not there copy nothing.
        numbers: places of the exchanges that are copied; None: all.
        under_way_s: place of an exchange -> seconds that it takes; what it takes from computing is added as well.
    """
    each = {rank.rank: copies for rank in graph.ranks} if isinstance(copies, Copies) else copies
    behind, ahead = ({rank.rank: dict[int, float]() for rank in graph.ranks} for _ in "ab")
    for number in range(len(graph.exchanges)) if numbers is None else numbers:
        one, whole_s = graph.exchanges[number], under_way_s.get(number, 0.0)
        if one.kind == "all_gather":
            for rank, places in one.before.items():
                if (own := each.get(rank)) is not None:
                    more_s = own.gathered_s * one.bytes + own.share * whole_s
                    behind[rank][min(places)] = behind[rank].get(min(places), 0.0) + more_s
        elif one.kind == "reduce_scatter":
            for rank, place in one.after.items():
                if (own := each.get(rank)) is not None:
                    more_s = own.scattered_s * one.bytes + own.share * whole_s
                    ahead[rank][place] = ahead[rank].get(place, 0.0) + more_s
    return edited(graph, lambda rank: _edit(rank, behind[rank.rank], ahead[rank.rank]))


def _edit(rank: RankGraph, behind: Mapping[int, float], ahead: Mapping[int, float]) -> Edit:
    """What waited for a gather waits with its copies, and what is launched with a scatter is launched after its own."""
    ops, places, after, before = list[Op](), dict[int, int](), list[int](), list[int]()
    for place, op in enumerate(rank.ops):
        before.append(len(ops))
        if seconds := behind.get(place):
            ops.append(Op("copies of gathered parameters", op.phase, seconds, kind=COPY, stream=op.stream))
        places[place] = len(ops)
        ops.append(moved_op(op, places))
        if seconds := ahead.get(place):
            ops.append(Op("copies of gradients", op.phase, seconds, kind=COPY, stream=op.stream))
        after.append(len(ops) - 1)
    return Edit(tuple(ops), after, before)


def _phase(rank: RankGraph, one: Exchange) -> str:
    place = one.after[rank.rank]
    return "forward" if place == START else rank.ops[place].phase


def _more_s(sharded: StepGraph, plain: StepGraph, phase: str) -> float:
    """Seconds of one phase that only the sharded job has, mean over ranks: its own operators, and longer pauses."""
    known = {op.name for rank in plain.ranks for op in rank.ops if op.phase == phase}

    def pauses_s(graph: StepGraph) -> float:
        own = [
            sum(op.delay_s + op.gap_s for op in rank.ops if op.phase == phase and op.name in known)
            for rank in graph.ranks
        ]
        return float(np.mean(own))

    new = [
        sum(op.delay_s + op.duration_s + op.gap_s for op in rank.ops if op.phase == phase and op.name not in known)
        for rank in sharded.ranks
    ]
    return float(np.mean(new)) + pauses_s(sharded) - pauses_s(plain)
