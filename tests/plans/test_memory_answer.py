"""What each rank holds, part by part, next to numbers counted by hand and to what a replay of the same plan says.

Reports of users: Automodel issue 1592 (a calculator before launching), Megatron-LM PR 482 (a number for each rank, not
one for all), Megatron-Bridge PR 5077 (the heaviest stage, not the average; few micro-batches), torchtitan PR 4016 (more
ranks than heads are refused, and not answered).
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from cdmpp.errors import CdmppError
from cdmpp.plans.allocator import CONTEXT
from cdmpp.plans.communicators import communicator_bytes
from cdmpp.plans.cut_places import CutPlaces
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.lower import lower_work
from cdmpp.plans.memory_answer import memory_answer
from cdmpp.plans.op_kinds import GRADIENTS, LOGITS, kinds_of
from cdmpp.plans.plan import Plan, plan_on
from cdmpp.plans.question import Question
from cdmpp.plans.rank_memory import peak_of
from cdmpp.plans.sources.table import TableSource
from cdmpp.plans.strategies.ddp import DDP
from cdmpp.plans.strategies.fsdp import FSDP
from cdmpp.plans.strategies.pipeline import Pipeline
from cdmpp.steps.from_layers import Layer
from cdmpp.steps.step_graph import Gradient, Op, RankGraph
from tests.plans.test_reported_pipelines import ROWS, links
from tests.plans.toy_source import ToySource

EVEN = tuple(Layer(f"block.{i}", 1e-3, 2e-3, 4000, 1000, saved_bytes=10_000, weights_s=1e-3) for i in range(8))


def answer(rows=ROWS, stages=2, many=8, schedule="1f1b", batch=None, is_gpu=False, limit=None, **settings):
    pipeline = (Pipeline(schedule, many, **settings),) if stages > 1 else ()
    plan = Plan(DDP(), ParallelDegrees(pp=stages), model_parallel=pipeline)
    return memory_answer(TableSource(rows), plan, links(stages), batch or many, is_gpu, limit)


def test_each_stage_is_told_apart_and_the_heaviest_counts():
    """The head's stage has 72 of 144 kB of parameters and most results; the average of the two is 32 % lower."""
    found = answer(cuts=("block.3",))
    first, last = found.ranks
    assert [one.parts.parameters for one in found.ranks] == [72_000, 72_000]
    assert [one.first for one in found.ranks] == [("embed",), ("block.3",)]
    assert [one.in_flight for one in found.ranks] == [2, 1]
    assert found.heaviest is last
    assert last.peak_bytes == 4 * 72_000 + 80_000 + 61_000 + 8 * 1000 + 7 * 1000 + 1000
    assert first.peak_bytes == 4 * 72_000 + 30_000 + 60_000 + 1000 + 8 * 1000
    average = (first.peak_bytes + last.peak_bytes) / 2
    assert last.peak_bytes > 1.05 * average


@pytest.mark.parametrize("many", [1, 2, 3, 8])
def test_in_flight_is_the_least_of_micro_batches_and_stages_that_follow(many):
    found = answer(EVEN, 4, many, batch=8 if many != 3 else 9)
    assert [one.in_flight for one in found.ranks] == [max(1, min(many, 4 - stage)) for stage in range(4)]


def test_one_micro_batch_is_whole():
    """All eight examples are saved, whatever the number of stages: 2 blocks of 80 kB."""
    saved = [one.parts.activations for one in answer(EVEN, 4, 1, batch=8).ranks]
    assert all(size >= 2 * 80_000 for size in saved)


def test_ranks_hold_what_they_hold_and_not_one_number():
    """Stage 0 has four micro-batches in flight and the last one has one: three more of what two blocks saved."""
    found = answer(EVEN, 4, 8, return_outputs=False)
    peaks = [one.peak_bytes for one in found.ranks]
    assert peaks == sorted(peaks, reverse=True) and len({*peaks}) == 4
    in_passes = [one.parts.activations for one in found.ranks]
    assert np.diff(in_passes[:3]).tolist() == [-20_000, -20_000]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved1f1b", "interleavedzerobubble"])
@pytest.mark.parametrize("is_gpu", [False, True])
def test_the_answer_is_that_of_the_plan_and_its_parts_add_up(schedule, is_gpu):
    found = answer(EVEN, 2, 8, schedule, is_gpu=is_gpu)
    source, plan = TableSource(EVEN), found.plan
    work = source.work(1, plan.degrees)
    assert found.heaviest.peak_bytes == peak_of(work, plan, lower_work(work, plan, links(2)), is_gpu)
    for one in found.ranks:
        assert sum(one.activations.values()) == one.parts.activations
        assert one.peak_bytes == sum(getattr(one.parts, part.name) for part in fields(one.parts))
        outside = CONTEXT + communicator_bytes(("pp",)) if is_gpu else 0
        assert one.outside_bytes == outside + one.parts.rounding


def test_the_closed_form_of_a_search_counts_communicators_too():
    question = Question(ToySource(), links, 8, 64, ("data", "hsdp", "data+pipeline"), is_gpu=True)
    judged, seen = question.judged(), set()
    for row in np.flatnonzero(~np.isnan(judged.costs.step_s)).tolist():
        plan = question.plan(judged.plans, row)
        found = memory_answer(question.source, plan, links(8), 64, True)
        assert float(judged.costs.memory_bytes[row]) == pytest.approx(found.heaviest.peak_bytes, rel=2e-3)
        assert found.heaviest.parts.communicators == communicator_bytes(plan.degrees.beyond_one()) > 0
        seen.add(plan.degrees)
    assert len(seen) > 4


def test_kinds_of_a_stage_are_what_it_saved():
    source = TableSource(ROWS)
    kinds = kinds_of(source.work(1, ParallelDegrees()).rank)
    assert kinds[:10] == ("other",) * 7 + (LOGITS, GRADIENTS, GRADIENTS)
    last = answer(cuts=("block.3",)).ranks[1]
    assert last.logits_bytes >= 50_000  # of the head
    assert answer(cuts=("block.3",)).ranks[0].logits_bytes == 0


def test_sharding_divides_what_it_says():
    whole = memory_answer(ToySource(), plan_on(4), links(4), 4, False).heaviest.parts
    shared = memory_answer(ToySource(), plan_on(4, FSDP()), links(4), 4, False).heaviest.parts
    assert shared.parameters == whole.parameters // 4 and shared.optimizer == whole.optimizer // 4


@pytest.mark.parametrize("limit", [None, 1e6, 1e9])
def test_fits_says_whether_the_heaviest_does(limit):
    found = answer(cuts=("block.3",), limit=limit)
    assert found.fits is (None if limit is None else found.heaviest.peak_bytes <= limit)
    told = found.to_dict()
    assert told["fits"] is found.fits and told["peak_bytes"] == found.heaviest.peak_bytes
    assert [one["fits"] for one in told["ranks"]] == [
        None if limit is None else one.peak_bytes <= limit for one in found.ranks
    ]


def test_what_cannot_be_is_refused():
    with pytest.raises(CdmppError, match="does not divide into 8 equal parts"):
        answer(batch=12)
    with pytest.raises(CdmppError, match="expected at most 8 stages"):
        answer(EVEN, 9, 9)


def ending_with(*ops):
    """A layer, then a head that makes 4 MB in 16 bits, then these; one op makes all gradients."""
    first = Op("linear#0", "forward", 1e-3, output_bytes=1000)
    head = Op("linear_1#1", "forward", 1e-3, output_bytes=4_000_000, inputs=(0,))
    forward = (first, head, *ops)
    backward = Op("backward", "backward", 1e-3, output_bytes=16, inputs=(len(forward) - 1,), forward=0)
    last = len(forward)
    gradients = (Gradient("a.weight", 8, last, readers=(0,)), Gradient("b.weight", 8, last, readers=(1,)))
    return CutPlaces(RankGraph(0, (*forward, backward), gradients))


@pytest.mark.parametrize("wider", [1, 2])
def test_output_of_a_model_is_what_it_returns_and_not_what_its_loss_casts(wider):
    cast = Op("to_1#2", "forward", 1e-3, output_bytes=wider * 4_000_000, inputs=(1,))
    loss = Op("log_softmax#3", "forward", 1e-3, output_bytes=wider * 4_000_000, inputs=(2,))
    assert ending_with(cast, loss).outputs == (1,)


def test_output_that_a_model_enlarges_is_the_larger_one():
    larger = Op("upsample#3", "forward", 1e-3, output_bytes=16_000_000, inputs=(2,))
    assert ending_with(Op("to#2", "forward", 1e-3, output_bytes=8_000_000, inputs=(1,)), larger).outputs == (3,)


LOGIT_ROWS = (*EVEN[:7], Layer("head", 1e-3, 2e-3, 4000, 500_000, saved_bytes=1000))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved1f1b"])
def test_behind_the_passes_a_rank_holds_outputs_alone(schedule):
    """Eight outputs of 500 kB, and the one into which they are copied, are all that the last rank holds then."""
    last = answer(LOGIT_ROWS, 2, 8, schedule).ranks[-1]
    assert last.parts.activations == last.logits_bytes == 2 * 8 * 500_000
    assert dict(last.activations) == {LOGITS: 8_000_000}
