"""Buckets as torch 2.13 with gloo packs them: sizes and order were recorded from real jobs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepBuffer
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.parameter_server import ParameterServer
from cdmpp.steps.buckets import fill_buckets, initial_buckets
from cdmpp.steps.exchange import START, Exchange
from cdmpp.steps.step_graph import Gradient
from cdmpp.steps.strategy_replay import replay_strategy
from cdmpp.steps.transforms.accumulate import accumulate
from cdmpp.steps.transforms.rebucket import gradient_exchanges, rebucket, used_map
from tests.steps.toy_graph import MIB, WIRE, rank_graph, ranks_of, wires
from tests.steps.toy_traced import MB, gradients, job

LAYER = 512 * 513
"""Numbers of a Linear(512, 512)."""


def _of_types(dtypes, sizes):
    """A layer a type, first to last, of one gradient each."""
    rank = rank_graph(sizes=sizes)
    made = zip(rank.gradients, dtypes, strict=True)
    return replace(rank, gradients=tuple(replace(one, dtype=dtype) for one, dtype in made))


def test_data_types_share_no_bucket():
    """Twelve Linear(512, 512), in turn float32 and bfloat16."""
    dtypes = ["float32", "bfloat16"] * 6
    rank = _of_types(dtypes, [LAYER * (4 if dtype == "float32" else 2) for dtype in dtypes])
    made = [(sum(one.bytes for one in bucket), {one.dtype for one in bucket}) for bucket in DDP().buckets(rank)]
    assert made == [
        (1_050_624, {"float32"}), (1_050_624, {"bfloat16"}), (5_253_120, {"float32"}), (2_101_248, {"bfloat16"}),
    ]  # fmt: skip
    as_one = DDP().buckets(rank_graph(sizes=[one.bytes for one in rank.gradients]))
    assert [sum(one.bytes for one in bucket) for bucket in as_one] == [1_575_936, 7_879_680]


def test_what_is_left_of_each_type_leaves_last_seen_first():
    dtypes = ["float32", "bfloat16", "float16", "float64"]
    made = DDP().buckets(_of_types(dtypes * 2, [1088, 544, 544, 2176] * 2))
    assert [bucket[0].dtype for bucket in made] == dtypes  # the last layer, of float64, is ready first
    assert [len(bucket) for bucket in made] == [2] * 4


def test_looking_for_unused_parameters_keeps_the_order_of_the_model_and_sums_a_map():
    graph = ranks_of(2, sizes=[MIB] * 10)
    made = DDP(find_unused_parameters=True).exchanges(graph)
    assert [one.bytes for one in made] == [9 * MIB, MIB, 4 * 10]
    assert [one.after[0] for one in made] == [18, 19, 19]
    assert [one.name for one in DDP(find_unused_parameters=True).buckets(graph.ranks[0])[1]] == ["layer 0"]
    assert [one.bytes for one in DDP().exchanges(graph)] == [MIB, 9 * MIB]
    assert [one.bytes for one in DDP((25 * MIB,)).exchanges(graph)] == [10 * MIB]
    assert DDP(find_unused_parameters=True).torch_arguments() == {"find_unused_parameters": True}


def _with_map():
    old = job()
    used = Exchange("all_reduce", 4 * 4, {0: 7, 1: 7}, {0: (8,), 1: (8,)}, wire_s=0.001, lag_s={0: 0.0, 1: 0.0})
    return replace(old, exchanges=(*old.exchanges, used))


def test_a_traced_job_that_looks_for_unused_parameters_is_data_parallel():
    graph = _with_map()
    assert used_map(graph) == 4 and used_map(job()) is None
    assert gradient_exchanges(graph) == (0, 1, 2, 3)
    strategy = DDP.from_trace(graph)
    assert strategy.find_unused_parameters and strategy.bucket_bytes == (MB,) * 4
    two = rebucket(graph, (MB, 25 * MB))
    assert sorted(one.bytes for one in two.exchanges) == [16, MB, 3 * MB]
    last = max((one for one in two.exchanges if one.bytes > 16), key=lambda one: one.after[0])
    assert last.bytes == MB  # the first parameters are in the small bucket, and their gradients come last
    odd = DDP.from_trace(rebucket(graph, (3 * MB,)))
    assert odd.bucket_bytes == (3 * MB, MB)  # filled in the order of the model; the small one leaves first
    with pytest.raises(CdmppError, match="find_unused_parameters of a traced step cannot be changed"):
        DDP().apply(graph)


def test_a_traced_job_with_parameters_without_a_gradient_says_so():
    """As recorded: one layer of three is unused, and the map has three numbers."""
    graph = _with_map()
    ranks = tuple(replace(rank, gradients=rank.gradients[1:]) for rank in graph.ranks)
    with pytest.raises(CdmppError, match="1 parameters of this job have no gradient in the traced step"):
        DDP.from_trace(replace(graph, ranks=ranks))


def test_traced_gradients_of_two_types_are_packed_apart():
    dtypes = ["float32", "bfloat16", "float32", "bfloat16"]

    def typed(rank):
        made = zip(rank.gradients, dtypes, strict=True)
        return replace(rank, gradients=tuple(replace(one, dtype=dtype) for one, dtype in made))

    graph = job()
    packed = rebucket(replace(graph, ranks=tuple(map(typed, graph.ranks))), 25 * MB)
    assert [(one.bytes, one.after[0]) for one in packed.exchanges] == [(2 * MB, 7), (2 * MB, 7)]
    assert len(rebucket(graph, 25 * MB).exchanges) == 1
    assert DDP.from_trace(packed).bucket_bytes == (2 * MB, 2 * MB)
    assert DDP.from_trace(rebucket(packed, MB)).bucket_bytes == (MB, 25 * MB)


def test_buffers_are_broadcast_before_the_first_forward_pass():
    """Two batch norms of 8 channels: means and variances of float32, counts of int64, as recorded of 4 ranks."""
    buffers = (StepBuffer(32, "float32"), StepBuffer(32, "float32"), StepBuffer(8, "int64")) * 2
    graph = ranks_of(4)
    graph = replace(graph, ranks=tuple(replace(rank, buffers=buffers) for rank in graph.ranks))
    made = DDP().exchanges(accumulate(graph, 3))
    assert [(one.kind, one.bytes, set(one.after.values())) for one in made[:2]] == [
        ("broadcast", 128, {START}), ("broadcast", 16, {START}),
    ]  # fmt: skip
    assert made[0].before == made[1].before == dict.fromkeys(range(4), (0,))
    assert {one.kind for one in made[2:]} == {"all_reduce"}
    assert not any(one.kind == "broadcast" for one in DDP(forward_sync_buffers=False).exchanges(graph))
    topology = wires(4, backend="gloo")
    quiet = replay_strategy(graph, DDP(forward_sync_buffers=False), topology)
    found = replay_strategy(graph, DDP(), topology)
    each_s = [2 * (WIRE.alpha_s + size * WIRE.beta_s) for size in (128, 16)]  # down a tree of two rounds
    assert found.iteration_s - quiet.iteration_s == pytest.approx(sum(each_s))
    assert found.sent_bytes - quiet.sent_bytes == 2 * (128 + 16)
    by_message = replay_strategy(graph, DDP(), topology, "ring step")
    assert by_message.iteration_s == pytest.approx(found.iteration_s)


def test_types_must_be_those_of_rank_0():
    one, other = ranks_of(2).ranks
    first = replace(other.gradients[0], dtype="float16")
    odd = replace(other, gradients=(first, *other.gradients[1:]))
    with pytest.raises(CdmppError, match=r"gradients of rank 1 are not those of rank 0: .*'float16'"):
        DDP().exchanges(replace(ranks_of(2), ranks=(one, odd)))
    assert Gradient("w", 4, 0).dtype == "float32" and gradients([1])[0].dtype == "float32"


def test_a_parameter_without_a_gradient_is_packed_where_ddp_looks_for_it():
    """As recorded: three layers of 1 MiB, of which the middle one is unused, and a map of three numbers."""
    graph = ranks_of(2, sizes=[MIB] * 3)

    def spared(rank):
        first, spare, last = rank.gradients
        return replace(rank, gradients=(first, replace(spare, is_used=False, ready_after=3), last))

    graph = replace(graph, ranks=tuple(map(spared, graph.ranks)))
    made = DDP(find_unused_parameters=True).exchanges(graph)
    assert [(one.bytes, one.after[0]) for one in made] == [(2 * MIB, 3), (MIB, 5), (12, 5)]
    with pytest.raises(CdmppError, match="the loss does not depend on layer 1, and DistributedDataParallel stops"):
        DDP().exchanges(graph)
    assert sum(one.bytes for one in ParameterServer().exchanges(graph)) == graph.ranks[0].gradient_bytes == 2 * MIB


def test_buckets_are_those_that_torch_itself_makes():
    """Random sizes, one to four types, one to three limits: in the order of the model, and as gradients arrive."""
    torch = pytest.importorskip("torch")
    made = pytest.importorskip("torch.distributed")._compute_bucket_assignment_by_size
    random, types = Random(0), ("float32", "bfloat16", "float16", "float64")
    for _ in range(300):
        dtypes = random.sample(types, random.randint(1, 4))
        chosen = [random.choice(dtypes) for _ in range(random.randint(1, 24))]
        tensors = [torch.empty(random.choice((1, 7, 64, 500)), dtype=getattr(torch, dtype)) for dtype in chosen]
        limits = [random.choice((1, 100, 600, 2000, 10**6)) for _ in range(random.randint(1, 3))]
        named = [
            Gradient(str(place), one.numel() * one.element_size(), 0, dtype)
            for place, (one, dtype) in enumerate(zip(tensors, chosen, strict=True))
        ]
        initial, arrived = made(tensors, limits)[0], made(tensors, limits, [], list(range(len(tensors))))[0]
        for found, wanted in ((initial_buckets(named, limits), initial), (fill_buckets(named, limits), arrived)):
            assert [[int(one.name) for one in bucket] for bucket in found] == wanted
