"""Plans for traced jobs whose best setting is known by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.plans import plan_on, search
from cdmpp.plans.evaluate import Evaluator
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.traced_step import optimize_traced, traced_plan
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.replay import replay
from cdmpp.steps.step_graph import Gradient, Measured, Op, RankGraph, StepGraph
from cdmpp.steps.transforms.rebucket import rebucket
from cdmpp.trace.op_kind import kind_of_op

MB = 2**20


def job(latency_s: float = 0.0, wire_s: float = 1.0, updates: int = 1, copies: bool = False) -> StepGraph:
    """Four layers, 1 s forward and 2 s backward each, with 1 MiB of gradients: ``wire_s`` and the latency a bucket."""
    copy, add = "torch::copy_bucket_to_grad", "aten::add_"
    forward = [Op("linear", "forward", 1.0) for _ in range(4)]
    backward = [Op("backward", "backward", 2.0) for _ in range(4)]
    copied = [Op(copy, "update", 0.25, kind=kind_of_op(copy, "update")) for _ in range(4 if copies else 0)]
    update = [Op(add, "update", 0.5, delay_s=0.125, kind=kind_of_op(add, "update")) for _ in range(updates)]
    gradients = tuple(Gradient(f"gradient {n}", MB, 4 + n) for n in reversed(range(4)))
    ranks = tuple(RankGraph(rank, (*forward, *backward, *copied, *update), gradients) for rank in (0, 1))
    sent = tuple(
        Exchange("all_reduce", MB, {0: 4 + n, 1: 4 + n}, dict.fromkeys((0, 1), (8 + n if copies else 8,)),
                 wire_s=wire_s + latency_s)
        for n in range(4)
    )  # fmt: skip
    probed = tuple(("all_reduce", size, latency_s + wire_s * size / MB) for size in (1, MB, 4 * MB))
    return StepGraph(ranks, sent, "gloo", measured=Measured((13.5,), probed=probed))


def test_settings_are_read_from_the_trace():
    traced = job(copies=True)
    assert traced_plan(traced) == plan_on(2, DDP((MB,) * 4))
    default = rebucket(traced, DDP().bucket_bytes)
    assert traced_plan(default) == plan_on(2)
    assert traced_plan(job()).strategy.gradient_as_bucket_view


def test_the_default_is_the_replay():
    traced = job(copies=True)
    evaluator = Evaluator(traced, None, traced_plan(traced))
    assert evaluator.evaluate(evaluator.default).iteration_s == pytest.approx(replay(traced).step_s)


def test_small_buckets_hide_behind_the_backward_pass():
    traced = rebucket(job(), (MB, 25 * MB))
    found = optimize_traced(traced)
    assert found.default_iteration_s == pytest.approx(4 + 8 + 3 + 0.5, abs=0.13)
    assert found.iteration_s == pytest.approx(4 + 8 + 1 + 0.5, abs=0.13)
    assert found.gain == pytest.approx(15.5 / 13.5 - 1, abs=0.01)
    assert found.peak_bytes is None


def test_large_buckets_where_a_message_costs_much():
    traced = job(latency_s=5.0, wire_s=0.1)
    found = optimize_traced(traced)
    assert len(rebucket(traced, found.plan.strategy.bucket_bytes).exchanges) < 4
    assert found.gain > 0.2


def test_updates_and_copies_that_need_not_be():
    traced = job(wire_s=1e-3, updates=4, copies=True)
    evaluator = Evaluator(traced, None, traced_plan(traced))
    found = search(evaluator)
    assert found.plan.update == "fused" and found.plan.strategy.gradient_as_bucket_view
    both = replace(evaluator.default, strategy=found.plan.strategy, update="fused")
    saved_s = evaluator.evaluate(evaluator.default).iteration_s - evaluator.evaluate(both).iteration_s
    assert saved_s == pytest.approx(4 * 0.25 + 3 * 0.125, abs=0.002)


def test_added_batches_exchange_once():
    traced = job(wire_s=10.0)
    evaluator = Evaluator(traced, None, traced_plan(traced))
    twice = evaluator.evaluate(replace(evaluator.default, gradient_accumulation_steps=2))
    assert twice.iteration_s == pytest.approx(evaluator.evaluate(evaluator.default).iteration_s + 4 + 8)


def test_other_jobs_are_refused():
    traced = job()
    with pytest.raises(CdmppError, match="DistributedDataParallel"):
        traced_plan(replace(traced, exchanges=()))
    with pytest.raises(CdmppError, match="not known"):
        search(Evaluator(traced, None, plan_on(2)), memory_limit_bytes=1)
    with pytest.raises(CdmppError, match="a traced step of fsdp cannot be changed"):
        Evaluator(traced, None, plan_on(2, "fsdp")).evaluate(plan_on(2, "fsdp"))
    with pytest.raises(CdmppError, match="the plan is for 4 ranks, and the step has 2"):
        Evaluator(traced, None, plan_on(4)).evaluate(plan_on(4))
    with pytest.raises(CdmppError, match="closed form needs a topology"):
        Evaluator(traced, None, plan_on(2), method="closed_form").evaluate(plan_on(2))
