"""What exchanges add to a step, by the closed form of overlap: the same as the replay says."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.plans.overlap import exposed_s
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.steps.from_layers import Layer, graph_of_layers
from cdmpp.steps.launches import Launches
from cdmpp.steps.strategy_replay import replay_strategy

SIZES = (1_000_000, 40_000_000, 3_000_000, 90_000_000, 10_000)


def _layers(scale):
    return [
        Layer(f"layer.{i}", scale * (1 + i) * 1e-3, scale * (2 + i) * 1e-3, size, 1) for i, size in enumerate(SIZES)
    ]


@pytest.mark.parametrize("strategy", [DDP(), DDP(overlap=False), DDP(bucket_bytes=(1,)), FSDP(), FSDP(overlap=False)])
@pytest.mark.parametrize("beta_s", [1e-12, 1e-10, 1e-9])
def test_the_step_is_that_of_the_replay(strategy, beta_s):
    topology = fitted(AlphaBeta(1e-5, beta_s), 4, "nccl")
    scales = (0.3, 1.0, 5.0)
    graphs = [graph_of_layers(_layers(scale), 4) for scale in scales]
    applied = strategy.apply(graphs[0])
    costs_s = np.array(
        [topology.whole(Collective(one.kind, one.bytes, 4, "nccl")).latency_s for one in applied.exchanges]
    )
    seconds = np.array([[op.duration_s for op in graph.ranks[0].ops] for graph in graphs])
    starts_s = np.concatenate([np.zeros((3, 1)), np.cumsum(seconds, axis=1)], axis=1).T
    launches, costs_s = Launches.of(applied.exchanges), np.repeat(costs_s[:, np.newaxis], 3, axis=1)
    found_s = starts_s[-1] + exposed_s(starts_s, np.zeros_like(seconds.T), launches, costs_s)
    replayed_s = [replay_strategy(graph, strategy, topology).iteration_s for graph in graphs]
    assert found_s == pytest.approx(replayed_s, rel=1e-6)


def test_without_exchanges_nothing_is_exposed():
    assert exposed_s(np.array([[0.0], [1.0]]), np.zeros((1, 1)), Launches.of(()), np.zeros((0, 1))) == 0
