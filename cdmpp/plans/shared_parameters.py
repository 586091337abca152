"""A strategy of the replicas on parameters that are not all shared by the same ranks: on each kind by itself.

So frameworks run it: experts are a module with a process group, and buckets, of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

from cdmpp.network.training_step import StepMemory
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.launches import Launches
from cdmpp.steps.step_graph import RankGraph, StepGraph
from cdmpp.steps.strategy import RankBytes, Strategy
from cdmpp.steps.transforms.shared import kinds_of, only

Sizes = Mapping[str, int]


def exchanges_of(strategy: Strategy, graph: StepGraph, sizes: Sizes) -> tuple[Exchange, ...]:
    """List what ``Strategy.exchanges`` does for each kind of parameters, in the order of the launches."""
    kinds = kinds_of(graph.ranks[0])
    if len(kinds) == 1:
        return strategy.exchanges(graph, sizes)
    found = list[Exchange]()
    for apart, own in _sharing(kinds, sizes):
        part = replace(graph, ranks=tuple(only(rank, apart) for rank in graph.ranks))
        along = tuple(own) if apart else ()
        found += [replace(one, along=one.along or along) for one in strategy.exchanges(part, own)]
    return tuple(sorted(found, key=lambda one: max(one.after.values())))


def launches_of(strategy: Strategy, rank: RankGraph, many: Sequence[Sizes]) -> Launches | None:
    """List what ``Strategy.launches`` does for each kind of parameters."""
    kinds = kinds_of(rank)
    if len(kinds) == 1:
        return strategy.launches(StepGraph((rank,)), many)
    found = list[Launches]()
    for apart, own in _sharing(kinds, many[0]):
        sizes = [{name: one[name] for name in own} for one in many]
        made = strategy.launches(StepGraph((only(rank, apart),)), sizes)
        if made is None:
            return None
        found.append(made.between(tuple(own)) if apart else made)
    return Launches.joined(found, len(many))


def rank_bytes_of(strategy: Strategy, held: StepMemory, rank: RankGraph, sizes: Sizes, batches: int = 1) -> RankBytes:
    """Count what ``Strategy.rank_bytes`` does for each kind of parameters, and sum them up."""
    kinds, found = kinds_of(rank), list[RankBytes]()
    for apart in kinds:
        own = {name: count for name, count in sizes.items() if name not in apart}
        part = only(rank, apart)
        found.append(strategy.rank_bytes(_held(held, rank, part), part.modules, own, batches))
    if len(found) == 1:
        return found[0]
    names = [one.name for one in fields(RankBytes) if one.name != "holds_gradients"]
    sums = {name: sum(getattr(one, name) for one in found) for name in names}
    return RankBytes(**sums, holds_gradients=any(one.holds_gradients for one in found))


def shards_of(strategy: Strategy, rank: RankGraph, sizes: Sizes) -> float:
    """Return over how many ranks an update is divided; of several kinds of parameters by their bytes."""
    kinds = kinds_of(rank)
    if len(kinds) == 1:
        return strategy.shards(sizes)
    parts, total = 0.0, sum(one.bytes for one in rank.gradients)
    for apart in kinds:
        own = {name: count for name, count in sizes.items() if name not in apart}
        parts += sum(one.bytes for one in rank.gradients if one.apart == apart) / strategy.shards(own)
    return max(total / parts, 1.0)


def _sharing(kinds: Sequence[tuple[str, ...]], sizes: Sizes) -> Iterator[tuple[tuple[str, ...], dict[str, int]]]:
    """Each kind of parameters that several ranks share, with these ranks."""
    for apart in kinds:
        own = {name: count for name, count in sizes.items() if name not in apart}
        if math.prod(own.values()) > 1:
            yield apart, own


def _held(held: StepMemory, rank: RankGraph, part: RankGraph) -> StepMemory:
    """Return the part of a rank that has one kind of parameters."""
    if part is rank:
        return held
    size, total = (sum(one.bytes for one in each.gradients) for each in (part, rank))
    own, every = (sum(one.bytes for one in each.modules) for each in (part, rank))
    share = size / max(total, 1)
    return replace(
        held,
        parameter_bytes=round(held.parameter_bytes * (own / every if every else share)),
        gradient_bytes=round(share * held.gradient_bytes),
        state_bytes=round(share * held.state_bytes),
        update_bytes=round(share * held.update_bytes),
    )
