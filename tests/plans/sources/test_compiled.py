"""Compiled blocks: which kernels are one, what these move, and linear layers in float8 with their casts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from plans.sources.toy_source import T4, source_of
from plans.strategies.transformers_small import Language, tokens

from cdmpp import devices
from cdmpp.collectives.topology import topology_of
from cdmpp.errors import CdmppError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower
from cdmpp.plans.memory import Memory
from cdmpp.plans.plan import Plan
from cdmpp.plans.sources.compiled import CompiledSource, as_compiled
from cdmpp.plans.sources.float8_layers import SPEED, Float8Layers
from cdmpp.plans.sources.fused_ops import FusedOps
from cdmpp.plans.sources.source import OpExchange, RankWork
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.tensor import Tensor
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import Gradient, Op, RankGraph

WEIGHT = 4000  # bytes of 2,000 elements


def op(name, phase, kind, size, *inputs, forward=None):
    return Op(name, phase, 1e-3, kind=kind, output_bytes=size, inputs=inputs, forward=forward)


OPS = (
    op("square", "forward", "elementwise", 100),
    op("norm", "forward", "reduce", 100, 0),
    op("linear", "forward", "dense", 200, 1),
    op("gelu", "forward", "elementwise", 200, 2),
    op("add", "forward", "elementwise", 100, 3, 0),
    op("head", "forward", "dense", 400, 4),
    op("loss", "forward", "softmax", 400, 5),
    op("loss, gradient", "backward", "softmax", 400, 6),
    op("head, gradient", "backward", "dense", 100, 7, 4, forward=5),
    op("gelu, gradient", "backward", "elementwise", 200, 8, 2, forward=3),
    op("linear, gradient of input", "backward", "dense", 100, 9, 1, forward=2),
    op("linear, gradient of weight", "backward", "dense", WEIGHT, 9, 1, forward=2),
    op("norm, gradient", "backward", "elementwise", 100, 10, 0, forward=1),
    op("update", "update", "elementwise", WEIGHT, 11),
)
RANK = RankGraph(
    0, OPS, (Gradient("linear.weight", WEIGHT, 11, readers=(2,)),),
    (ModuleSpan("root", 10, (5, 6), (7, 8), is_kept=True), ModuleSpan("block", WEIGHT, (0, 4), (9, 12))),
)  # fmt: skip


def test_a_kernel_reads_once_what_others_wrote_and_writes_what_others_read():
    fused = FusedOps(RANK, ())
    assert fused.groups == {0: 0, 1: 0, 3: 3, 4: 3, 9: 9, 12: 12}, "products and the head lie between, outside is none"
    assert fused.moved_bytes == {0: 200, 3: 200 + 100 + 100, 9: 100 + 200 + 200, 12: 100 + 100 + 100}
    rank = fused.rank_at(byte_s=1e-6, launch_s=1e-5)
    assert [one.duration_s for one in rank.ops[:5]] == pytest.approx([1e-4, 1e-4, 1e-3, 2e-4, 2e-4])
    assert rank.ops[3].output_bytes == 0 and rank.ops[4].output_bytes == 100, "a result in registers takes no memory"
    assert rank.ops[6].duration_s == rank.ops[13].duration_s == 1e-3, "loss and update are not compiled"
    slow = fused.rank_at(byte_s=1.0, launch_s=1e-5)
    assert [one.duration_s for one in slow.ops] == pytest.approx([1e-3] * len(OPS)), "no slower than one by one"


def test_a_compiled_loss_is_fused_as_well():
    fused = FusedOps(RANK, (), has_loss=True)
    assert fused.groups[6] == 6 and fused.groups[7] == 6, "the loss and its gradient read the same scores"
    assert fused.moved_bytes[6] == 400 + 400


def test_what_an_exchange_brings_lies_in_memory():
    sent = OpExchange("all_gather", 800, "tp", 0, (1,))
    fused = FusedOps(RANK, (sent,))
    assert fused.groups[0] != fused.groups[1]
    assert fused.moved_bytes[1] == 100 + 800 + 100, "its own part, what all sent, and what it writes"


def test_what_a_policy_saves_and_nobody_reads_again_is_not_saved():
    """AOTAutograd of torch 2.13 saves the first of two products that a policy must save, and not the last one."""
    again = Op("norm again", "backward", 1e-3, kind="reduce", output_bytes=100, inputs=(0, 2, 3), forward=1,
               is_recomputed=True)  # fmt: skip
    rank = RankGraph(0, (*OPS[:12], again, OPS[13]), RANK.gradients, RANK.modules)
    found = FusedOps(rank, ()).rank_at(byte_s=1e-6, launch_s=1e-5)
    assert found.ops[12].inputs == (0, 2), "the gradient of GELU reads what it read, and nobody its result"


@pytest.mark.parametrize(
    ("scaling", "before"),
    [
        ("tensorwise", {2: 5 * 2000 + 5 * 50, 10: 5 * 2000 + 5 * 100, 11: 5 * 50}),
        ("rowwise", {2: 5 * 2000 + 5 * 50, 10: 13 * 2000 + 5 * 100, 11: 13 * 50 + 13 * 100}),
    ],
)
def test_products_of_blocks_are_in_float8_behind_their_casts(scaling, before):
    layers = Float8Layers(FusedOps(RANK, ()), scaling, 1)
    rank = layers.rank_of(RANK, 1e-9)
    for place in (2, 10, 11):
        assert rank.ops[place].duration_s == pytest.approx(1e-3 / SPEED)
        assert rank.ops[place].delay_s == pytest.approx(1e-9 * before[place])
    for place in (5, 8, 0, 13):
        assert rank.ops[place] == OPS[place], "the head stays as it is"


@pytest.mark.parametrize("async_tp", [False, True])
def test_tensor_ranks_gather_sequences_of_blocks_in_float8_with_scales_of_tensors(async_tp):
    source, degrees = source_of(Language("gated"), tokens()), ParallelDegrees(tp=2)
    given = (Tensor(sequence_parallel=True, shared_inputs=True, async_tp=async_tp),)
    plain, scaled, rows = (
        CompiledSource(source, T4, float8).work(4, degrees, given) for float8 in (None, "tensorwise", "rowwise")
    )
    assert [one.bytes for one in rows.exchanges] == [one.bytes for one in plain.exchanges]
    halved = [
        one.name for one, other in zip(plain.exchanges, scaled.exchanges, strict=True) if one.bytes == 2 * other.bytes
    ]
    assert halved and all(one.bytes == two.bytes for one, two in zip(plain.exchanges, scaled.exchanges, strict=True)
                          if one.name not in halved)  # fmt: skip
    assert all("blocks." in name and ("input" in name or "gradient" in name) for name in halved)
    assert not any(one.kind != "all_gather" for one in plain.exchanges if one.name in halved)
    delays = [sum(one.delay_s for one in work.rank.ops) for work in (plain, scaled, rows)]
    assert delays[0] == 0 < delays[1] < delays[2], "each rank casts its part, or all"


def test_a_plan_of_compiled_blocks_is_faster_and_its_interval_is_wider():
    source = source_of(Language("gated"), tokens())
    plan, topology = Plan(FSDP(), ParallelDegrees(dp_shard=2)), topology_of(2, "t4", link="pcie4")
    eager, compiled = (
        replay(lower(one, plan, topology, 8).graph, topology).step_s for one in (source, CompiledSource(source, T4))
    )
    assert compiled < eager
    works = [one.work(4, ParallelDegrees()) for one in (source, CompiledSource(source, T4))]
    assert works[1].low < works[0].low and works[1].high > works[0].high
    assert works[1].rank.task_count == works[0].rank.task_count
    held = [Memory(one.memory, one.rank).live() for one in works]
    assert held[1].with_gradients < held[0].with_gradients, "what kernels keep in registers is held by nobody"


def test_a_compiled_ring_waits_for_what_it_sends():
    """``all_gather_tensor`` of torch 2.13 waits at once while it is traced; a message of another degree stays."""
    sent = OpExchange("all_gather", 800, "cp", 0, (4,))
    work = RankWork(RANK, (sent, replace(sent, degree="tp")))
    found = CompiledSource(SimpleNamespace(work=lambda *_: work), devices.get("a100")).work(
        1, ParallelDegrees(cp=2, tp=2)
    )
    assert [one.before for one in found.exchanges] == [(1, 4), (4,)]


def test_what_cannot_be_compiled_is_refused():
    source = source_of(Language("gated"), tokens())
    with pytest.raises(CdmppError, match="compiled blocks need a GPU whose memory bandwidth is known"):
        CompiledSource(source, devices.get("epyc-milan"))
    plain = source_of(torch.nn.Linear(8, 8), torch.zeros(2, 8))
    with pytest.raises(CdmppError, match="no blocks that FSDP gathers one by one"):
        CompiledSource(plain, T4).work(2, ParallelDegrees())


def test_float8_is_on_top_of_operators_in_halves():
    assert [str(one) for one in as_compiled("float8-rowwise-fsdp")] == ["bf16-fsdp", "rowwise"]
    assert as_compiled("float8")[0].name == "bf16" and as_compiled("bf16")[1] is None
