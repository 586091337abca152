"""Strategies that divide states, gradients or parameters: what they exchange, and what a rank holds, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.collectives.collective import Collective
from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted
from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.groups import replica_exchanges
from cdmpp.plans.lower import lower_work
from cdmpp.plans.mesh import Mesh
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.sources.source import RankWork
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.hsdp import HSDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.plans.strategies.zero import ZeRO
from cdmpp.steps.from_layers import Layer, graph_of_layers
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import StepGraph
from cdmpp.steps.transforms.accumulate import accumulate
from tests.plans.toy_job import layers, memory
from tests.steps.toy_graph import MIB, ranks_of

KINDS = {"all_gather": "AG", "reduce_scatter": "RS", "all_reduce": "AR", "broadcast": "B"}


def told(exchanges):
    return [KINDS[one.kind] for one in exchanges]


def test_replicas_sum_what_each_reduce_scatter_leaves():
    graph, sizes = ranks_of(4, sizes=[MIB, 2 * MIB]), {"dp_replicate": 2, "dp_shard": 2}
    found = HSDP().exchanges(graph, sizes)
    assert told(found) == ["AG", "AG", "AG", "AG", "RS", "AR", "RS", "AR"]
    assert [(one.bytes, one.along) for one in found[4:]] == [
        (2 * MIB, ("dp_shard",)), (MIB, ("dp_replicate",)), (MIB, ("dp_shard",)), (MIB // 2, ("dp_replicate",)),
    ]  # fmt: skip
    assert [one.follows for one in found] == [False] * 5 + [True, False, True]
    assert all(one.follows for one in HSDP(overlap=False).exchanges(graph, sizes))
    assert not found[5].before and HSDP(overlap=False).exchanges(graph, sizes)[5].before  # ranks stand still on gloo
    plan = Plan(HSDP(), ParallelDegrees(dp_replicate=2, dp_shard=2))
    groups = replica_exchanges(graph, plan, Mesh(plan.degrees), range(4))
    assert {one.members for one in groups if one.kind == "reduce_scatter"} == {(0, 1), (2, 3)}
    assert {one.members for one in groups if one.kind == "all_reduce"} == {(0, 2), (1, 3)}
    one = replica_exchanges(StepGraph(graph.ranks[:1]), plan, Mesh(plan.degrees), [0] * 4)
    assert [(e.kind, e.bytes, e.members) for e in one] == [
        (e.kind, e.bytes, e.members) for e in groups if 0 in e.members
    ]  # fmt: skip


def test_one_replica_is_fsdp_and_one_shard_sums_whole_gradients():
    graph = ranks_of(4, sizes=[MIB, 2 * MIB])
    plain = [replace(one, along=()) for one in HSDP().exchanges(graph, {"dp_shard": 4, "dp_replicate": 1})]
    assert plain == list(FSDP().exchanges(graph))
    whole = HSDP().exchanges(graph, {"dp_shard": 1, "dp_replicate": 4})
    assert [(one.kind, one.bytes) for one in whole] == [("all_reduce", 2 * MIB), ("all_reduce", MIB)]
    held = StepMemory(4 * MIB, 4 * MIB, 8 * MIB, 0, 0, 0, 0)
    sizes = {"dp_shard": 2, "dp_replicate": 4}
    modules = graph.ranks[0].modules
    assert HSDP().rank_bytes(held, modules, sizes) == FSDP().rank_bytes(held, modules, {"dp_shard": 2})
    assert HSDP().shards(sizes) == 2 and FSDP().shards({"dp_shard": 2, "spatial": 4}) == 8


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (FSDP(), "AG AG AG AG AG AG AG AG RS RS"),
        (FSDP(scatter_each_batch=True), "AG AG AG AG RS RS AG AG AG AG RS RS"),
        (FSDP(reshard_after_forward=False), "AG AG AG AG RS RS"),
        (FSDP(is_pipelined=True), "AG AG RS RS"),
    ],
)
def test_accumulated_batches(strategy, expected):
    graph = accumulate(ranks_of(2, sizes=[MIB, MIB]), 2)
    found = strategy.exchanges(graph)
    assert told(found) == expected.split()
    assert all(one.after[0] < place for one in found for place in one.before.get(0, ()))


def test_no_module_is_gathered_before_its_batch_begins():
    """The second batch stands behind the whole first one: forward 0 1, backward 2 3; forward 4 5, backward 6 7."""
    found = FSDP().exchanges(accumulate(ranks_of(1, sizes=[MIB, MIB]), 2))
    assert [one.after[0] for one in found if one.kind == "all_gather"] == [-1, -1, 1, 1, 3, 3, 5, 5]
    assert [one.after[0] for one in found if one.kind == "reduce_scatter"] == [6, 7]


def test_modules_are_fetched_as_far_ahead_as_is_said():
    """Four modules begin at ops 0 to 3 of the forward pass and, the last one first, at 4 to 7 of the backward pass."""
    for ahead, expected in ((1, [-1, -1, 0, 1, 3, 3, 4, 5]), (2, [-1, -1, -1, 0, 3, 3, 3, 4]), (9, [-1] * 4 + [3] * 4)):
        found = FSDP(prefetch=ahead).exchanges(ranks_of(1, sizes=[MIB] * 4))
        assert [one.after[0] for one in found if one.kind == "all_gather"] == expected
    standing = FSDP(prefetch=2, overlap=False).exchanges(ranks_of(1, sizes=[MIB] * 4))
    waits = [(one.after[0], one.before[0]) for one in standing if one.kind == "all_gather"]
    assert waits[:4] == [(-1, (0,)), (-1, (0,)), (-1, (0,)), (0, (1,))]


def test_fetching_ahead_hides_an_uneven_gather_and_holds_one_more_module():
    """Layers of 3, 0.1 and 1 ms; the last one's gather takes 2 ms, of which 0.1 hide behind the layer before."""
    rows = [Layer("a", 3e-3, 1e-3, 8, 8), Layer("b", 1e-4, 1e-3, 8, 8), Layer("c", 1e-3, 1e-3, 4_000_000, 8)]
    job, topology = RankWork(graph_of_layers(rows).ranks[0]), fitted(AlphaBeta(0.0, 1e-9), 2, "nccl")
    plans = [plan_on(2, FSDP(prefetch=ahead)) for ahead in (1, 2)]
    one_s, two_s = (replay(lower_work(job, plan, topology).graph, topology).step_s for plan in plans)
    assert one_s - two_s == pytest.approx(1.9e-3, rel=1e-3)
    held = StepMemory(6 * MIB, 6 * MIB, 12 * MIB, 0, 0, 0, 0)
    modules = ranks_of(1, sizes=[MIB, 3 * MIB, 2 * MIB]).ranks[0].modules
    gathered = [FSDP(prefetch=ahead).rank_bytes(held, modules, {"dp_shard": 2}).gathered_bytes for ahead in (1, 2)]
    assert gathered == [5 * MIB, 6 * MIB]


def test_torch_sends_each_parameter_behind_the_update():
    """The largest first, each to the rank that has least: 3 | 2 1."""
    graph = ranks_of(2, sizes=[MIB, 3 * MIB, 2 * MIB])
    found = ZeRO().exchanges(graph)
    assert found[:-3] == DDP().exchanges(graph)
    assert [one.bytes for one in found[-3:]] == [3 * MIB, 2 * MIB, MIB]
    shared = graph.with_exchanges(found)
    update, end = len(graph.ranks[0].ops) - 1, len(graph.ranks[0].ops)
    assert {one.after[0] for one in shared.exchanges[-3:]} == {update}
    assert {one.before[0] for one in shared.exchanges[-3:]} == {(end,)}  # the update does not wait for what follows it
    assert update in shared.exchanges[0].before[0]


def test_deepspeed_sums_buckets_and_gathers_all():
    graph = ranks_of(5, sizes=[MIB, MIB, MIB])
    two = ZeRO(framework="deepspeed", bucket_elements=MIB // 2)  # 2 MiB: two layers
    found = two.exchanges(graph)
    assert [(one.kind, one.bytes) for one in found] == [
        ("all_reduce", 2 * MIB), ("all_reduce", MIB), ("all_gather", 3 * MIB + 32),  # a multiple of 2 x 5 elements
    ]  # fmt: skip
    assert len({one.after[0] for one in found[:2]}) == 2
    assert len({one.after[0] for one in replace(two, overlap=False).exchanges(graph)[:2]}) == 1
    twice = accumulate(graph, 2)
    assert told(two.exchanges(twice)) == ["AR", "AR", "AG"]
    again = replace(two, stage=2).exchanges(twice)
    assert told(again) == ["AR", "AR", "AR", "AR", "AG"]
    batch = len(graph.ranks[0].ops) - 1
    assert [one.after[0] for one in again[2:4]] == [one.after[0] + batch for one in again[:2]]


def test_megatron_reduces_buckets_as_gradients_come_and_gathers_them_ahead():
    """Layers of 30, 30 and 20 million elements: from the last one on the first bucket has 50 million, the next 30.

    The forward pass is ops 0 to 2, the backward pass 3 to 5. The bucket of layers 1 and 2 is read from op 1 on, and
    leaves where layer 0 begins, at the start; that of layer 0 is read first.
    """
    rows = [Layer(f"l{i}", 1e-3, 2e-3, 4_000_000 * many, 8) for i, many in enumerate((30, 30, 20))]
    rank = graph_of_layers(rows, update_s=1e-3).ranks[0]
    readers = {f"l{i}": i for i in range(3)}
    rank = replace(rank, gradients=tuple(replace(one, readers=(readers[one.name],)) for one in rank.gradients))
    graph = StepGraph((rank, replace(rank, rank=1)))
    made = {one.name: one.ready_after for one in rank.gradients}
    whole = ZeRO(framework="megatron", overlap=False).exchanges(graph)
    assert told(whole) == ["RS", "AG"] and [one.bytes for one in whole] == [320_000_000] * 2
    reduced = ZeRO(framework="megatron").exchanges(graph)
    assert told(reduced) == ["RS", "RS", "AG"]
    assert [(one.bytes, one.after[0]) for one in reduced[:2]] == [
        (200_000_000, made["l1"]), (120_000_000, made["l0"]),
    ]  # fmt: skip
    ahead = ZeRO(framework="megatron", overlap_param_gather=True, gathered_share=0.5).exchanges(graph)
    assert told(ahead) == ["AG", "AG", "RS", "RS"]
    assert [(one.bytes, one.after[0], one.before[0]) for one in ahead[:2]] == [
        (60_000_000, -1, (0,)), (100_000_000, -1, (1,)),
    ]  # fmt: skip
    topology, times = fitted(AlphaBeta(0.0, 1e-12), 2, "nccl"), []
    for settings in ({"overlap": False}, {}, {"overlap_param_gather": True}):
        plan = plan_on(2, ZeRO(framework="megatron", **settings))
        times.append(replay(lower_work(RankWork(rank), plan, topology).graph, topology).step_s)
    sent_s = [topology.whole(Collective(kind, 10**6, 2)).latency_s / 1e6 for kind in ("reduce_scatter", "all_gather")]
    step_s = 9.5e-3  # each rank updates a half
    assert times[0] == pytest.approx(step_s + 320e6 * sum(sent_s), rel=1e-6)
    assert times[1] == pytest.approx(step_s + 120e6 * sent_s[0] + 320e6 * sent_s[1], rel=1e-6)
    assert times[2] == pytest.approx(step_s + 120e6 * sum(sent_s), rel=1e-6)


def test_switches_of_megatron_are_refused_elsewhere():
    for settings in ({}, {"framework": "deepspeed"}, {"framework": "megatron", "overlap": False}):
        with pytest.raises(CdmppError, match="needs overlapped gradients too"):
            ZeRO(overlap_param_gather=True, **settings)
    with pytest.raises(CdmppError, match="give overlap false"):
        ZeRO(framework="megatron").in_pipeline()
    with pytest.raises(CdmppError, match="nothing says which ops read"):
        ZeRO(framework="megatron", overlap_param_gather=True).exchanges(ranks_of(2, sizes=[MIB]))


def test_stages_divide_states_and_gradients():
    modules = ranks_of(1, sizes=[MIB, 3 * MIB, 2 * MIB]).ranks[0].modules
    modules = tuple(replace(one, rows=((one.bytes // 4, 4, 0),)) for one in modules)
    held = StepMemory(6 * MIB, 6 * MIB, 12 * MIB, 0, 0, 0, 0, 2 * MIB)
    sizes = {"dp_replicate": 2}
    torch = ZeRO().rank_bytes(held, modules, sizes)
    assert torch == replace(DDP().rank_bytes(held, modules, sizes), state_bytes=6 * MIB, update_bytes=MIB)
    four = ZeRO().rank_bytes(held, modules, {"dp_replicate": 4})
    assert four.state_bytes == 6 * MIB  # one rank has the largest parameter
    one = ZeRO(framework="deepspeed", bucket_elements=MIB).rank_bytes(held, modules, sizes)
    two = ZeRO(stage=2, bucket_elements=MIB, overlap=False).rank_bytes(held, modules, sizes)
    assert (one.parameter_bytes, one.state_bytes, one.gradient_bytes, one.gathered_bytes) == (
        9 * MIB, 6 * MIB, 6 * MIB, 8 * MIB,
    )  # fmt: skip
    assert (two.gradient_bytes, two.gathered_bytes) == (3 * MIB, 4 * MIB)


def test_what_cannot_be_is_refused():
    for make, message in (
        (lambda: ZeRO(stage=3), "zero.stage is 3"),
        (lambda: ZeRO(framework="jax"), "zero.framework is 'jax'; one of torch, deepspeed"),
        (lambda: ZeRO(stage=2, framework="torch"), "take framework deepspeed, or fsdp"),
        (lambda: ZeRO(stage=2).in_pipeline(), "take stage 1"),
        (lambda: plan_on(8, "hsdp"), "give a plan with degrees.dp_shard and degrees.dp_replicate"),
    ):
        with pytest.raises(CdmppError, match=message):
            make()


@pytest.mark.parametrize(
    ("strategy", "degrees", "alone", "piped"),
    [
        (FSDP(), {"dp_shard": 2}, (8 + 8, 4, 0, 0), (2, 2, 0, 0)),
        (HSDP(), {"dp_shard": 2, "dp_replicate": 2}, (8 + 8, 4, 4, 0), (2, 2, 2, 0)),
        (ZeRO(), {"dp_replicate": 2}, (0, 0, 2, 4), (0, 0, 2, 2)),
        (ZeRO(framework="deepspeed"), {"dp_replicate": 2}, (1, 0, 1, 0), (1, 0, 1, 0)),
    ],
)
def test_a_job_of_two_batches_and_one_of_two_stages(strategy, degrees, alone, piped):
    """Four layers: gathers, scatters, all-reduces, broadcasts of rank 0; one rank a stage says the same as all."""
    work = RankWork(memory(layers((MIB,) * 4, (1e-3,) * 4), [MIB] * 4).rank)
    pipeline = (Pipeline(micro_batches=4),)
    for plan, expected in (
        (Plan(strategy, ParallelDegrees(**degrees), 2), alone),
        (Plan(strategy, ParallelDegrees(pp=2, **degrees), model_parallel=pipeline), piped),
    ):
        topology = fitted(AlphaBeta(1e-4, 1e-9), plan.ranks, "nccl")
        folded, whole = (lower_work(work, plan, topology, fold).graph for fold in (True, False))
        for graph in (folded, whole):
            kinds = [one.kind for one in graph.exchanges if 0 in one.after]
            assert tuple(kinds.count(kind) for kind in KINDS) == expected
        assert replay(folded, topology).step_s == pytest.approx(replay(whole, topology).step_s)


def test_buckets_of_deepspeed_are_said_to_be_its_own():
    """Two of 500,000,000 elements of 4 bytes, of a model of 3 MiB; torch's own stage 1 has none."""
    (told,) = ZeRO(stage=2).memory_warnings()
    assert "2 buckets of 500,000,000 elements (DeepSpeed's own default), 4.00 GB, however small the model is" in told
    assert "--bucket-mb is of ddp" in told and "bucket_elements of a plan file does" in told
    (told,) = ZeRO(stage=2, bucket_elements=1000, overlap=False).memory_warnings()
    assert "holds 1 bucket of 1,000 elements (as the plan says), 4.00 kB," in told
    assert ZeRO().memory_warnings() == DDP().memory_warnings() == ()
    work = RankWork(layers((MIB,) * 3, (1e-3,) * 3))
    for ranks, many in ((1, 0), (2, 1)):
        topology = fitted(AlphaBeta(1e-5, 1e-9), ranks)
        warnings = lower_work(work, plan_on(ranks, ZeRO(stage=2)), topology).warnings
        assert sum("DeepSpeed" in one for one in warnings) == many
