"""The closed form of plans: the formulas of ParaDL as special cases, and what the replay says of the same plans."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from cdmpp.collectives.interconnect import AlphaBeta
from cdmpp.collectives.topology import fitted, topology_of
from cdmpp.plans import judge
from cdmpp.plans.candidates import candidates
from cdmpp.plans.combinations import Combination, combinations
from cdmpp.plans.judge import Judge
from cdmpp.plans.limits import terms
from cdmpp.plans.lower import lower, lower_work
from cdmpp.plans.question import Question
from cdmpp.plans.rank_memory import peak_of
from cdmpp.plans.schedules import LOOPED, SCHEDULES
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.steps.replay import replay
from tests.plans.sources.toy_source import source_of
from tests.plans.test_stages import WORDS, Tied
from tests.plans.toy_source import ToySource

ALPHA_S, BETA_S = 1e-5, 1e-10


def _topology(ranks):
    return fitted(AlphaBeta(ALPHA_S, BETA_S), ranks, "nccl")


def _question(names, ranks=8, batch=64, source=None, **options):
    return Question(source or ToySource(), _topology, ranks, batch, tuple(names), **options)


def _replayed_s(question, plans, row):
    topology = question.topology(plans.ranks)
    lowered = lower(question.source, question.plan(plans, row), topology, question.global_batch)
    return replay(lowered.graph, topology).step_s


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("forward_s", [1e-5, 1e-3])
def test_data_parallel_is_that_of_the_replay(overlap, forward_s):
    one = Combination("data", DDP(overlap=overlap), (), ("dp_replicate",))
    source = ToySource(forward_s=forward_s)
    plans = candidates([one], 8, 64, {}, can_recompute=False)
    found = Judge(source).closed_form(plans, _topology(8))
    question = _question(["data"], source=source)
    for row in range(len(plans)):
        assert found.step_s[row] == pytest.approx(_replayed_s(question, plans, row), rel=1e-6)
        if not overlap:
            assert found.step_s[row] == pytest.approx(found.no_overlap_s[row])


@pytest.mark.parametrize("name", ["zero1", "zero2", "fsdp", "hsdp"])
@pytest.mark.parametrize("forward_s", [1e-5, 1e-4])
def test_sharded_replicas_are_those_of_the_replay(name, forward_s):
    """Also where exchanges take longer than the passes, and where the update takes as long as many of them."""
    question = _question([name], 8, 32, ToySource(forward_s=forward_s))
    judged = question.judged()
    rows = np.flatnonzero(judged.fits & (judged.plans.recompute == 0))
    assert len(rows) > 2
    for row in rows:
        assert judged.costs.step_s[row] == pytest.approx(_replayed_s(question, judged.plans, int(row)), rel=1e-3)


def test_data_parallel_is_the_formula_of_paradl():
    one = Combination("data", DDP(bucket_bytes=(2**40,), overlap=False), (), ("dp_replicate",))
    source, p, batch = ToySource(), 8, 64
    plans = candidates([one], p, batch, {}, can_recompute=False)
    found = Judge(source).closed_form(plans, _topology(p))
    row = int(np.flatnonzero(plans.micro_batches == 1)[0])
    weights = 8 * 4_000_000
    assert found.communication_s["gradients"][row] == pytest.approx(2 * (p - 1) * (ALPHA_S + weights / p * BETA_S))
    assert found.compute_s[row] == pytest.approx(8 * 3e-3 * batch / p)
    assert found.update_s[row] == pytest.approx(1e-4)


def test_filter_parallel_is_that_of_the_replay_and_the_formula():
    question, p, batch = _question(["filter"], 4, 16), 4, 16
    judged = question.judged()
    row = int(np.flatnonzero((judged.plans.micro_batches == 1) & (judged.plans.recompute == 0))[0])
    assert judged.costs.step_s[row] == pytest.approx(_replayed_s(question, judged.plans, row), rel=1e-6)
    layers, output = 8, 100_000 * batch
    assert judged.costs.communication_s["split operators"][row] == pytest.approx(
        (p - 1) * layers * (ALPHA_S + output / p * BETA_S), rel=1e-3
    )
    assert judged.costs.compute_s[row] == pytest.approx(8 * 3e-3 * batch / p)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_of_equal_stages_takes_the_formula(stages, schedule):
    source = ToySource(output=1)
    judged = Question(
        source, lambda ranks: fitted(AlphaBeta(0.0, 1e-18), ranks, "nccl"), stages, 32, ("pipeline",), is_torch=False
    ).judged()
    plans, costs = judged.plans, judged.costs
    names = np.array([one.name for one in plans.schedules])[plans.schedule]
    for row in np.flatnonzero((names == schedule) & (plans.recompute == 0)):
        m = plans.micro_batches[row]
        alone_s = 8 * 3e-3 * 32
        expected = (m + stages - 1) / m * alone_s / stages
        assert costs.compute_s[row] + costs.bubble_s[row] == pytest.approx(expected, rel=1e-6)
        assert costs.bubble_s[row] == pytest.approx((stages - 1) / m * alone_s / stages, rel=1e-6)


@pytest.mark.parametrize("name", ["data+pipeline", "fsdp+pipeline", "hsdp+pipeline"])
def test_messages_of_a_pipeline_with_replicas_go_between_nodes(name):
    """Stages stand as many ranks apart as there are replicas: on nodes of eight their messages cross nodes."""
    source = ToySource(forward_s=1e-4, parameters=40_000_000, output=4_000_000)
    question = replace(
        _question([name], 16, 32, source), topology=lambda ranks: topology_of(ranks, "h100", cluster="dgx-h100")
    )
    judged = question.judged()
    rows = np.flatnonzero(judged.fits & (judged.plans.degree("dp_replicate", "dp_shard") >= 4))
    assert len(rows) > 5
    for row in rows:  # exchanges take as long as all else; ranks of several stages stand still for those of each
        near = 0.15 if judged.plans.schedules[judged.plans.schedule[row]].is_looped else 0.06
        assert judged.costs.step_s[row] == pytest.approx(_replayed_s(question, judged.plans, int(row)), rel=near)


def test_one_device_takes_what_its_kernels_take():
    judged = _question(["data"], 1, 4).judged()
    row = int(np.flatnonzero((judged.plans.micro_batches == 1) & (judged.plans.recompute == 0))[0])
    assert judged.costs.step_s[row] == pytest.approx(8 * 3e-3 * 4 + 1e-4)
    assert judged.costs.exposed_s[row] == 0


def test_the_order_of_plans_far_apart_is_that_of_the_replay():
    names = ["data", "fsdp", "pipeline", "data+pipeline", "filter", "data+filter"]
    question = _question(names, 8, 32, ToySource(forward_s=1e-4))
    judged = question.judged()
    rows = [int(row) for row in np.flatnonzero(~np.isnan(judged.costs.step_s))]
    assert len(rows) > 40
    replayed = {row: _replayed_s(question, judged.plans, row) for row in rows}
    closed = judged.costs.step_s
    wrong = [
        (question.plan(judged.plans, a), question.plan(judged.plans, b))
        for a, b in itertools.permutations(rows, 2)
        if closed[b] > 1.2 * closed[a] and replayed[b] < replayed[a]
    ]
    assert not wrong


def test_the_same_question_has_the_same_answer_to_the_last_digit():
    first, second = (_question(["data", "fsdp", "data+pipeline"]).judged() for _ in range(2))
    assert list(first.order()) == list(second.order())
    assert np.array_equal(first.costs.step_s, second.costs.step_s, equal_nan=True)


def test_combinations_are_judged_by_themselves_as_together():
    both = _question(["data", "fsdp"]).judged()
    alone = _question(["fsdp"]).judged()
    rows = both.plans.combination == 1
    assert np.array_equal(both.costs.step_s[rows], alone.costs.step_s)
    assert combinations(["fsdp"]) == alone.plans.combinations


def test_memory_of_another_batch_does_not_depend_on_what_was_asked_before():
    judge = Judge(ToySource())
    for batch in (64, 128, 32):
        plans = candidates(combinations(["data"]), 8, batch, {}, can_recompute=False)
        plans = plans.taken(plans.micro_batches == 1)
        fresh = Judge(ToySource()).closed_form(plans, _topology(8))
        assert judge.closed_form(plans, _topology(8)).memory_bytes == pytest.approx(fresh.memory_bytes)


class OtherOpsAtOne(ToySource):
    """A single example runs one op more, as where a layout is another one."""

    def work(self, batch, degrees, strategies=()):
        work = super().work(batch, degrees)
        if batch > 1:
            return work
        rank = work.rank
        return replace(work, rank=replace(rank, ops=(*rank.ops, replace(rank.ops[-1], inputs=()))))


def test_a_micro_batch_of_one_may_run_other_ops():
    question = _question(["data", "pipeline"], ranks=2, batch=8, source=OtherOpsAtOne(layers=2))
    judged = question.judged()
    assert 1 in judged.plans.micro_batch
    assert all("weights_s" in why for why in judged.costs.errors.values())
    for row in np.flatnonzero(judged.fits & (judged.plans.micro_batch == 1)):
        assert judged.costs.step_s[row] == pytest.approx(_replayed_s(question, judged.plans, row), rel=0.05)


@pytest.mark.parametrize("name", ["data", "fsdp", "pipeline"])
def test_memory_on_a_gpu_is_that_of_one_plan_by_itself(name):
    question = replace(_question([name], ranks=4, batch=16), is_gpu=True)
    judged = question.judged()
    for row in np.flatnonzero(judged.fits & (judged.plans.recompute == 0)):
        plan, topology = question.plan(judged.plans, row), question.topology(4)
        work = question.source.work(int(judged.plans.micro_batch[row]), plan.degrees)
        whole = peak_of(work, plan, lower_work(work, plan, topology), is_gpu=True)
        assert judged.costs.memory_bytes[row] == pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("names", [["pipeline"], ["data+pipeline"]])
def test_stages_that_hold_the_same_parameter_sum_its_gradients(names):
    source = source_of(Tied(), torch.randint(0, WORDS, (4, 6)))
    question = replace(
        _question(names, 2 if names == ["pipeline"] else 4, 8, source),
        topology=lambda ranks: fitted(AlphaBeta(1e-6, 1e-6), ranks, "nccl"),
    )
    judged = question.judged()
    rows = np.flatnonzero(judged.fits & (judged.plans.recompute == 0))
    assert len(rows)
    for row in rows:
        assert judged.costs.step_s[row] == pytest.approx(_replayed_s(question, judged.plans, row), rel=0.1)


@pytest.mark.parametrize(("name", "messages"), [("channel", 8 * 3), ("pipeline", 2)])
def test_start_up_is_that_of_the_exchanges_themselves(name, messages):
    judged = _question([name], ranks=4, batch=8).judged()
    parts = terms(judged.costs)
    looped = np.array([one.is_looped for one in judged.plans.schedules])[judged.plans.schedule]
    for row in np.flatnonzero(judged.fits & ~looped):
        expected = messages * ALPHA_S * int(judged.plans.micro_batches[row])
        if name == "channel":  # operators of the forward pass run again, and exchange again
            expected *= 1 + int(judged.plans.recompute[row])
        assert parts["start-up"][row] == pytest.approx(expected, rel=1e-3)
        assert parts["bandwidth"][row] > 0


def test_several_global_batches_at_once_are_those_of_each():
    question = _question(["data", "fsdp", "pipeline", "data+pipeline"], is_gpu=True, memory_limit_bytes=6e8)
    batches = (16, 64, 96, 7)
    for batch, one in zip(batches, question.at_batches(batches), strict=True):
        found, own = one.judged(), replace(question, global_batch=batch, _judged={}).judged()
        assert one.global_batch == batch and len(found.plans) == len(own.plans)
        assert np.array_equal(found.fits, own.fits) and np.array_equal(found.order(), own.order())
        assert np.allclose(found.costs.step_s, own.costs.step_s, rtol=1e-12, equal_nan=True)
        assert np.array_equal(found.costs.memory_bytes, own.costs.memory_bytes, equal_nan=True)
        assert [found.why_not(row) for row in range(len(found.plans))] == [
            own.why_not(row) for row in range(len(own.plans))
        ]
    assert question.at_batches(()) == ()


def test_memory_of_every_micro_batch_is_that_of_its_own_timeline():
    """Peaks are no line between the smallest and the largest micro-batch: gradients weigh more in small ones."""
    question = _question(["data", "fsdp", "data+pipeline"], source=ToySource(parameters=40_000_000, output=3_000_000))
    found = question.judged()
    for row in np.flatnonzero(found.fits)[::5]:
        plan = question.plan(found.plans, int(row))
        work = question.source.work(int(found.plans.micro_batch[row]), plan.degrees)
        exact = peak_of(work, plan, lower_work(work, plan, _topology(8)), False)
        assert found.costs.memory_bytes[row] == pytest.approx(exact, rel=1e-9)


def test_many_plans_are_judged_in_parts_of_bounded_size(monkeypatch):
    names = ("data", "fsdp", "data+pipeline", "fsdp+pipeline")
    whole = _question(names).judged().costs
    monkeypatch.setattr(judge, "MOST_CELLS", 20)
    parts = _question(names).judged().costs
    for name in ("step_s", "memory_bytes", "exposed_s"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name), equal_nan=True)


def test_only_the_schedules_of_a_question_are_tried():
    schedules = (SCHEDULES["1f1b"](), LOOPED["interleaved1f1b"](4))
    plans = _question(("pipeline",), schedules=schedules).judged().plans
    assert plans.schedules == schedules
    assert {*plans.schedule.tolist()} == {0, 1}
