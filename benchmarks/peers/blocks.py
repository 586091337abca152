"""GPT-3 175B by seconds and bytes of Calculon's own layers: what each block takes at a micro-batch and a division."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from benchmarks.peers.calculon import BlockStats, Calculon
from benchmarks.peers.networks import HEADS
from cdmpp.collectives.collective import Collective
from cdmpp.collectives.collective_model import CollectiveEstimate
from cdmpp.collectives.topology import Topology, certain
from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.source import OpExchange, RankWork, StepSource
from cdmpp.steps.from_layers import Layer, graph_of_layers
from cdmpp.steps.strategy import Strategy

_OPS = {"send_recv": "p2p", "broadcast": "all_gather"}
"""Collective -> the one of Calculon that it is priced as; others have the same name."""


@dataclass(frozen=True)
class SameBlocks(StepSource):
    """A language model of equal blocks, whose seconds and bytes are those that Calculon has for one of them.

    Along ``tp`` operators are divided as Calculon divides them: two all-reduces a block in each pass.
    """

    calculon: Calculon
    blocks: int
    most_tp: int

    def work(self, batch: int, degrees: ParallelDegrees, strategies: Sequence[Strategy] = ()) -> RankWork:  # noqa: ARG002
        return _work(self, batch, degrees.tp)

    def limits(self) -> Mapping[str, int]:
        return {"pp": self.blocks, "tp": self.most_tp, "spatial": 1, "filter": 1, "channel": 1}


@cache
def _work(source: SameBlocks, batch: int, tp: int) -> RankWork:
    if HEADS % tp:
        raise CdmppError(f"tensor={tp}: {HEADS} heads cannot be divided evenly")
    one, count = source.calculon.block(tp, batch), source.blocks
    layers = [
        Layer(
            f"h.{i}", one.forward_s, one.backward_s, one.weight_bytes, one.result_bytes, one.saved_bytes,
            one.update_s, weights_s=one.weights_s,
        )
        for i in range(count)
    ]  # fmt: skip
    rank = graph_of_layers(layers).ranks[0]
    rank = replace(rank, modules=tuple(replace(module, rows=((1, module.bytes),)) for module in rank.modules))
    weights = count * one.weight_bytes
    memory = StepMemory(weights, weights, count * one.state_bytes, 0, 0, count * one.saved_bytes, 0)
    return RankWork(rank, _exchanges(one, count, tp), memory)


def _exchanges(one: BlockStats, blocks: int, tp: int) -> tuple[OpExchange, ...]:
    """Two all-reduces behind each block in each pass; an op of the backward pass of a block has its gradient behind."""
    if tp == 1:
        return ()
    places = [*range(blocks), *range(blocks, 3 * blocks, 2)]
    return tuple(
        OpExchange("all_reduce", one.result_bytes, "tp", place, (place + 1,), f"block, op {place}, {turn}")
        for place in places
        for turn in range(2)
    )


def links_of(calculon: Calculon, ranks: int, per_node: int = 8) -> Topology:
    """Nodes of so many ranks on Calculon's two networks, by its formula; each rank has an adapter of its own."""
    near, far = (_cost(calculon.network(tier)) for tier in range(2))
    rates = [calculon.rate(tier) for tier in range(2)]
    return Topology(
        "calculon", ranks, "nccl", near, rates[0], max(1, ranks // per_node), lambda part, flows=1.0: far(part),
        rates[1], min(per_node, ranks),
    )  # fmt: skip


def _cost(network: Any) -> Any:
    @cache
    def cost(collective: Collective) -> CollectiveEstimate:
        kind = _OPS.get(collective.kind, collective.kind)
        seconds = 0.0 if collective.ranks == 1 else network.time(kind, collective.bytes, collective.ranks)
        return certain(seconds, "a network of Calculon")

    return cost
