"""What PyTorch's allocator reserves for a rank under FSDP2, next to streams worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.network.training_step import StepMemory
from cdmpp.plans.cut import stages_of
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.fsdp_moments import FsdpMoments
from cdmpp.plans.fsdp_reserved import fsdp_reserved
from cdmpp.plans.plan import Plan
from cdmpp.plans.rank_memory import held_stages, parts_of_stages
from cdmpp.plans.sizes import MIB
from cdmpp.plans.sources.source import OpExchange, RankWork
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.steps.module_span import ModuleSpan
from cdmpp.steps.step_graph import Gradient, Op, RankGraph

BIG = 200 * MIB
"""Bytes of a block's weights and of each result; gradients are scattered in twice as wide a type."""


def rank():
    """Two blocks of a product each, and a loss that saves what it made just before."""
    ops = (
        Op("a", "forward", 0.0, output_bytes=BIG),
        Op("b", "forward", 0.0, output_bytes=BIG, inputs=(0,)),
        Op("logs", "forward", 0.0, output_bytes=3 * BIG, inputs=(1,)),
        Op("loss", "forward", 0.0, output_bytes=3 * BIG + 4, result_bytes=4, saved_bytes=3 * BIG,
           own_saved_bytes=3 * BIG, inputs=(2,)),
        Op("loss back", "backward", 0.0, output_bytes=3 * BIG, inputs=(3,), forward=3),
        Op("logs back", "backward", 0.0, output_bytes=BIG, inputs=(4,), forward=2),
        Op("b weights", "backward", 0.0, output_bytes=BIG, inputs=(5, 0), forward=1),
        Op("b back", "backward", 0.0, output_bytes=BIG, inputs=(5,), forward=1),
        Op("a weights", "backward", 0.0, output_bytes=BIG, inputs=(7,), forward=0),
    )  # fmt: skip
    rows, wide = ((4, BIG // 4, 0),), ((4, BIG // 2, 0),)
    modules = (
        ModuleSpan("a", BIG, (0, 0), (8, 8), rows=rows, trained_rows=wide),
        ModuleSpan("b", BIG, (1, 1), (6, 7), rows=rows, trained_rows=wide),
    )
    gradients = (Gradient("a.weight", 2 * BIG, 8), Gradient("b.weight", 2 * BIG, 6))
    return RankGraph(0, ops, gradients, modules)


def held(strategy=None, work=None):
    work = work or RankWork(rank(), memory=StepMemory(4 * BIG, 4 * BIG, 8 * BIG, 0, 0, 0, 0))
    plan = Plan(strategy or FSDP(), ParallelDegrees(dp_shard=4) if strategy is None else ParallelDegrees(4))
    stages = held_stages(work, plan, stages_of(work.rank, ()), is_gpu=True)
    return stages, plan, parts_of_stages(plan, stages)


def test_what_a_loss_saves_is_what_it_made():
    moments = FsdpMoments.of(rank())
    taken = {name: size for one in moments.forward for name, size in one.taken}
    assert sum(taken.values()) == 5 * BIG + 4  # logarithms once
    freed = [name for one in moments.backward for name in one.freed]
    assert (2, "result") in freed
    assert [one.gradients for one in moments.backward if one.gradients] == [(("b", 6, BIG),), (("a", 8, BIG),)]
    assert [[each.name for each in one.begins] for one in moments.forward] == [["a"], ["b"], [], []]


def test_all_that_is_taken_is_let_go():
    moments = FsdpMoments.of(rank(), ("a", "b"))
    both = (*moments.forward, *moments.backward)
    taken, freed = (
        [name for one in both for name in each(one)] for each in (lambda one: dict(one.taken), lambda one: one.freed)
    )
    assert sorted(taken) == sorted(freed)


def test_streams_are_apart():
    """Weights, states and passes share a stream; two gathered modules, and scattered gradients have one each.

    A rank has a fourth of 4 + 8 (weights and states). The results of a and b follow, the place in which each block was
    gathered, the logarithms and their gradient (3 each). Buffers of two modules lie beside each other, and a fourth of
    all gradients, which are twice as wide, is kept.
    """
    stages, plan, parts = held()
    (found,) = fsdp_reserved(stages, plan, parts)
    assert found == pytest.approx(((4 + 8) / 4 + 2 + 1 + 3 + 3 + 2 + 1) * BIG, abs=20 * MIB)
    (native,) = fsdp_reserved(stages, plan, parts, allocator="native")
    assert native >= found - 60 * MIB  # pages are at most so much beyond what is taken


def test_collectives_of_operators_have_buffers():
    """What is gathered lies beside its copy, and what is scattered beside what it was copied from."""
    work = RankWork(rank(), memory=StepMemory(4 * BIG, 4 * BIG, 8 * BIG, 0, 0, 0, 0))
    (before,) = fsdp_reserved(*held(work=work))
    sent = OpExchange("all_gather", 4 * BIG, "tp", 3, (4,))
    stages, plan, parts = held(work=work)
    (after,) = fsdp_reserved(stages, plan, parts, (sent,))
    assert after - before == pytest.approx(4 * BIG, abs=20 * MIB)
    assert fsdp_reserved(stages, plan, parts, (replace(sent, degree="cp"),)) == [before]


def test_other_plans_and_allocators_are_refused():
    stages, plan, parts = held()
    with pytest.raises(CdmppError, match="one of native, expandable"):
        fsdp_reserved(stages, plan, parts, allocator="jemalloc")
    with pytest.raises(CdmppError, match="followed under fsdp over several ranks, given ddp"):
        fsdp_reserved(*held(DDP()))
