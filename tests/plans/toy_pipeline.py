"""Work of one rank whose layers have round numbers, and plans of pipelines for it."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.source import RankWork
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.from_layers import Layer, graph_of_layers

FREE = AlphaBeta(0.0, 1e-15)
"""A message takes no time to speak of."""
KB = 1000


def work(seconds: Sequence[float] = (1e-3,) * 4, update_s: float = 0.0, sent: int = KB) -> RankWork:
    """Layers that take so long forward and twice as long backward, with 4 kB of parameters each."""
    layers = [Layer(f"layer.{i}", one, 2 * one, 4 * KB, sent) for i, one in enumerate(seconds)]
    return RankWork(graph_of_layers(layers, update_s=update_s).ranks[0])


def plan(pp: int = 4, micro_batches: int = 8, schedule: str = "1f1b", dp: int = 1, **settings: object) -> Plan:
    """Replicas of a pipeline."""
    pipeline = Pipeline(schedule, micro_batches, **settings)
    return Plan(DDP(), ParallelDegrees(pp=pp, dp_replicate=dp), model_parallel=(pipeline,))


def links(ranks: int, wire: AlphaBeta = FREE):
    """Ranks on links of two numbers."""
    return fitted(wire, ranks, "nccl")
