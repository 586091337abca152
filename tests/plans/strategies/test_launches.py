"""Exchanges for many numbers of ranks at once, which the closed form asks for, are those that plans are lowered to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.network.training_step import StepBuffer
from cdmpp.plans.bare import bare
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower_work
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.source import RankWork
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.hsdp import HSDP
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.zero import ZeRO
from cdmpp.steps.from_layers import Layer, graph_of_layers
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.accumulate import accumulate
from tests.steps.toy_graph import MIB, wires

OF_REPLICAS = [kind for kind in STRATEGIES if not kind.divides_model]
WAYS = [
    DDP(), DDP(bucket_bytes=(3 * MIB,)), DDP(overlap=False), DDP(find_unused_parameters=True),
    DDP(gradient_as_bucket_view=True, forward_sync_buffers=False),
    FSDP(), FSDP(reshard_after_forward=False), FSDP(scatter_each_batch=True), FSDP(is_pipelined=True),
    FSDP(overlap=False), HSDP(), HSDP(overlap=False), HSDP(reshard_after_forward=False),
    ZeRO(), ZeRO(overlap=False), ZeRO(framework="deepspeed", bucket_elements=MIB), ZeRO(stage=2),
    ZeRO(stage=2, bucket_elements=MIB // 2, overlap=False), ParameterServer(),
    ParameterServer(servers=2, overlap=False),
]  # fmt: skip
RANKS = {
    "ddp": [{"dp_replicate": count} for count in (2, 3, 8, 48)],
    "fsdp": [{"dp_shard": count} for count in (2, 3, 8, 48)],
    "hsdp": [{"dp_shard": a, "dp_replicate": b} for a, b in ((2, 2), (8, 3), (3, 16), (5, 2))],
    "zero": [{"dp_replicate": count} for count in (2, 3, 8, 48)],
    "ps": [{"dp_replicate": count} for count in (2, 3, 8, 48)],
}
"""The numbers of ranks that are asked for at once."""
WITH_ONE = [{"dp_shard": 1, "dp_replicate": 4}, {"dp_shard": 4, "dp_replicate": 1}, {"dp_shard": 2, "dp_replicate": 2}]


def _rank(is_used: bool = True):
    """Layers of other sizes, rows that no number of ranks divides, a layer that is not trained, buffers."""
    sizes = [2 * MIB, 5 * MIB, 3 * MIB, 3 * MIB, 4096]
    (rank,) = graph_of_layers([Layer(f"layer {i}", 1e-3, 2e-3, size, 64) for i, size in enumerate(sizes)]).ranks
    modules = [replace(one, rows=((7, one.bytes // 16, 0), (1, 64, 0))) for one in rank.modules]
    modules[3] = replace(modules[3], trained_rows=(), in_backward=False)
    modules[0] = replace(modules[0], is_kept=True)
    gradients = [replace(one, is_used=is_used or place != 2) for place, one in enumerate(rank.gradients) if place != 3]
    buffers = (StepBuffer(512, "float32"), StepBuffer(8, "int64"))
    return replace(rank, modules=tuple(modules), gradients=tuple(gradients), buffers=buffers)


def _told(strategy, graph, many):
    """What ``launches`` says of each number of ranks, by itself where it says nothing of all."""
    found = strategy.launches(StepGraph((bare(graph.ranks[0]),)), many)
    if found is None:
        assert len(many) > 1
        return [one for sizes in many for one in _told(strategy, graph, [sizes])]
    assert found.bytes.shape == (len(found.group), len(many))
    before = [[] for _ in found.group]
    for place, number in zip(*(one.tolist() for one in found.waits), strict=True):
        before[number].append(place)
    same = [
        (*found.groups[group], after, tuple(own), follows)
        for group, after, own, follows in zip(
            found.group, found.after.tolist(), before, found.follows.tolist(), strict=True
        )
    ]
    return [[(*one, size) for one, size in zip(same, sizes, strict=True)] for sizes in found.bytes.T.tolist()]


def _listed(strategy, graph, many):
    """The same of what ``exchanges`` lists for each."""
    return [
        [
            (one.kind, one.along, one.after[0], one.before.get(0, ()), one.follows, one.bytes)
            for one in strategy.exchanges(graph, sizes)
        ]
        for sizes in many
    ]


def test_every_strategy_of_replicas_is_tried():
    assert {type(one) for one in WAYS} == set(OF_REPLICAS)


@pytest.mark.parametrize("batches", [1, 2, 3])
@pytest.mark.parametrize("strategy", WAYS, ids=repr)
def test_many_at_once_are_those_of_each(strategy, batches):
    graph = accumulate(StepGraph((_rank(),)), batches)
    for many in (RANKS[strategy.name], RANKS[strategy.name][::-1], *([WITH_ONE] if strategy.name == "hsdp" else [])):
        assert _told(strategy, graph, many) == _listed(strategy, graph, many)


def test_parameters_without_a_gradient_are_left_out_in_both():
    strategy, graph = DDP(find_unused_parameters=True), StepGraph((_rank(is_used=False),))
    many = RANKS["ddp"]
    assert _told(strategy, graph, many) == _listed(strategy, graph, many)
    assert strategy.exchanges(graph, many[0])[-1].name == "used parameters"


LOWERED = [
    (one, stages) for one in WAYS for stages in (1, 2)
    if one.name != "ps" and (stages == 1 or not (one.name == "zero" and one.stage == 2))
]  # fmt: skip
"""Servers have no closed form, and DeepSpeed's stage 2 no pipeline."""


@pytest.mark.parametrize(("strategy", "stages"), LOWERED, ids=repr)
def test_a_lowered_plan_has_them(strategy, stages):
    sizes = RANKS[strategy.name][1]
    degrees = ParallelDegrees(pp=stages, **sizes)
    plan = Plan(strategy, degrees, model_parallel=(Pipeline(micro_batches=2),) if stages > 1 else ())
    lowered = lower_work(RankWork(_rank()), plan, wires(degrees.ranks))
    assert len(lowered.graph.ranks) == stages
    asked = strategy.in_pipeline() if stages > 1 else strategy
    for stage, own in enumerate(lowered.graph.ranks):
        (told,) = _told(asked, StepGraph((replace(own, rank=0),)), [sizes])
        of_stage = [one for one in lowered.graph.exchanges if stage in one.after and one.kind != "send_recv"]
        assert told
        assert [(kind, after, size) for kind, _, after, *_, size in told] == [
            (one.kind, one.after[stage], one.bytes) for one in of_stage
        ]
