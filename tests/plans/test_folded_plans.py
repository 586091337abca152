"""Lowered plans on nodes: one rank a stage, and merged ops, take as long as all 32 ranks; 1,024 ranks take seconds."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from cdmpp.collectives import cluster
from cdmpp.collectives.topology import on_cluster, topology_of
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.evaluate import evaluate
from cdmpp.plans.lower import lower_work
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.source import OpExchange
from cdmpp.plans.strategies import STRATEGIES
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.strategy_replay import replay_exchanges
from cdmpp.steps.transforms.merge_ops import merge_ops
from cdmpp.steps.transforms.scale import scale_ranks
from tests.plans.toy_pipeline import work

MIB = 2**20
NODES = on_cluster(replace(cluster.get("dgx-h100"), nodes=8, devices_per_node=4, adapters_per_node=2), 32)
CPUS = on_cluster(replace(cluster.get("cpus-ethernet"), nodes=8, devices_per_node=4), 32, "gloo")
WORK = work([1e-3 * (1 + i % 3) for i in range(12)], update_s=1e-3, sent=4 * MIB)
HALOS = replace(
    WORK,
    exchanges=(
        *(OpExchange("send_recv", MIB, "spatial", 2, (3,), f"halo {shift}", shift) for shift in (1, -1)),
        OpExchange("all_reduce", MIB, "spatial", 7, (8,), "statistics"),
    ),
)
"""Ranks that divide images: eight of them are two nodes."""


@pytest.mark.parametrize("topology", [NODES, CPUS], ids=lambda one: one.backend)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("strategy", "degrees"),
    [
        ("ddp", {"pp": 4, "dp_replicate": 8}),
        ("ddp", {"pp": 2, "dp_replicate": 16}),
        ("fsdp", {"pp": 2, "dp_shard": 16}),
        ("hsdp", {"pp": 2, "dp_replicate": 4, "dp_shard": 4}),
        ("hsdp", {"dp_replicate": 8, "dp_shard": 4}),
        ("hsdp", {"dp_replicate": 4, "dp_shard": 8}),
        ("ddp", {"dp_replicate": 4, "spatial": 8}),
        ("fsdp", {"dp_shard": 8, "spatial": 4}),
        ("ddp", {"pp": 2, "dp_replicate": 2, "spatial": 8}),
        ("ddp", {"pp": 4, "dp_replicate": 4, "spatial": 2}),
    ],
)
def test_32_ranks_fold(strategy, degrees, overlap, topology):
    pipeline = (Pipeline(micro_batches=6, overlap=overlap),) if "pp" in degrees else ()
    spatial = (STRATEGIES["spatial"](),) if "spatial" in degrees else ()
    plan = Plan(STRATEGIES[strategy](), ParallelDegrees(**degrees), model_parallel=(*pipeline, *spatial))
    every, few = (lower_work(HALOS if spatial else WORK, plan, topology, fold).graph for fold in (False, True))
    assert (len(every.ranks), len(few.ranks)) == (32, degrees.get("pp", 1) * degrees.get("spatial", 1))
    steps_s = [replay(graph, topology).step_s for graph in (every, few, merge_ops(few))]
    assert steps_s == pytest.approx([steps_s[0]] * 3, rel=1e-9)
    told = [replay_exchanges(graph, strategy, topology, 1.0) for graph in (every, few)]
    assert told[0].sent_bytes == pytest.approx(told[1].sent_bytes) and told[0].warnings == told[1].warnings


@pytest.mark.parametrize(
    ("degrees", "kept"),
    [({"pp": 4, "dp_replicate": 3}, 12), ({"pp": 2, "dp_replicate": 6}, 2), ({"pp": 3, "dp_shard": 4}, 3),
     ({"dp_replicate": 2, "dp_shard": 6}, 1), ({"dp_replicate": 4, "dp_shard": 3}, 2)],
)  # fmt: skip
def test_ranks_whose_groups_lie_otherwise_in_the_nodes_are_not_alike(degrees, kept):
    """Groups of 3 or 6 ranks do not fill nodes of 4: some cross to the next node, and some do not."""
    topology = on_cluster(replace(cluster.get("dgx-h100"), nodes=3, devices_per_node=4, adapters_per_node=2), 12)
    pipeline = (Pipeline(micro_batches=6),) if "pp" in degrees else ()
    strategy = "hsdp" if len(degrees) > len(pipeline) + 1 else "fsdp" if "dp_shard" in degrees else "ddp"
    plan = Plan(STRATEGIES[strategy](), ParallelDegrees(**degrees), model_parallel=pipeline)
    every, few = (lower_work(WORK, plan, topology, fold).graph for fold in (False, True))
    assert len(few.ranks) == kept
    assert replay(few, topology).step_s == pytest.approx(replay(every, topology).step_s, rel=1e-9)


@pytest.mark.parametrize("method", ["replay", "closed_form"])
def test_a_search_evaluates_plans_along_two_degrees(method):
    plan = Plan(STRATEGIES["hsdp"](), ParallelDegrees(dp_replicate=4, dp_shard=8))
    found = evaluate(plan, scale_ranks(StepGraph((WORK.rank,)), 32), NODES, method=method)
    every = replay_exchanges(lower_work(WORK, plan, NODES, False).graph, "hsdp", NODES, 1.0)
    assert found.iteration_s == pytest.approx(every.iteration_s if method == "replay" else every.full_overlap_s)


def test_1024_ranks_take_seconds():
    """8 stages of 30 layers, 128 replicas, 64 micro-batches, on one core: lowered, merged, replayed."""
    topology = topology_of(1024, "v100", "dgx1-v100", can_grow=True)
    of = work([1e-3] * 240, update_s=1e-3, sent=4 * MIB)
    plan = Plan(degrees=ParallelDegrees(pp=8, dp_replicate=128), model_parallel=(Pipeline(micro_batches=64),))
    begun_s = time.process_time()
    step_s = replay(merge_ops(lower_work(of, plan, topology).graph), topology).step_s
    assert time.process_time() - begun_s < 20
    assert step_s > (64 + 8 - 1) * 30 * 3e-3
