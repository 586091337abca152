"""A traced step as a source: what one rank computes, without what its exchanges took of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from steps.toy_traced import MB, gradients, job

from cdmpp.errors import CdmppError
from cdmpp.plans.degrees import ParallelDegrees
from cdmpp.plans.sources.source import SPLITS
from cdmpp.plans.sources.trace import TraceSource
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.step_graph import COPY, LAUNCH, Op, RankGraph, StepGraph

ONE = ParallelDegrees()


def test_the_traced_batch_is_as_it_was_traced():
    work = TraceSource(job(), 8).work(8, ONE)
    assert [op.duration_s for op in work.rank.ops] == [1.0] * 4 + [2.0] * 4 + [0.5]
    assert work.rank.gradient_bytes == 4 * MB and [one.ready_after for one in work.rank.gradients] == [7, 6, 5, 4]
    assert (work.low, work.high, work.warnings, work.memory, work.exchanges) == (1.0, 1.0, (), None, ())


def test_launches_and_copies_are_left_out_and_places_follow():
    ops = (
        Op("linear", "forward", 1.0), Op("backward", "backward", 2.0), Op("launch", "backward", 0.3, kind=LAUNCH),
        Op("backward", "backward", 2.0, waits=()), Op("copy", "backward", 0.4, kind=COPY),
        Op("sgd", "update", 0.5, delay_s=0.7),
    )  # fmt: skip
    rank = RankGraph(0, ops, gradients([1, 3]), start_s=0.25)
    sent = Exchange("all_reduce", MB, {0: 2, 1: 2}, {0: (4,), 1: (4,)}, wire_s=1.0, blocks={0: (5,), 1: (5,)})
    work = TraceSource(StepGraph((rank, replace(rank, rank=1)), (sent,)), 8).work(8, ONE)
    assert [(op.name, op.duration_s) for op in work.rank.ops] == [
        ("linear", 1.0), ("backward", 2.0), ("backward", 2.0), ("sgd", 0.5)
    ]  # fmt: skip
    assert work.rank.ops[3].delay_s == 0 and work.rank.start_s == 0.25
    assert [one.ready_after for one in work.rank.gradients] == [2, 1]


def test_other_batches_take_time_in_proportion_within_a_wide_interval():
    source = TraceSource(job(), 8)
    few, many = source.work(4, ONE), source.work(16, ONE)
    assert [op.duration_s for op in few.rank.ops] == [0.5] * 4 + [1.0] * 4 + [0.5]
    assert (few.low, few.high) == (1.0, 2.0) and (many.low, many.high) == (0.5, 1.0)
    assert few.warnings == ("traced with 8 examples a rank: the time of 4 is in proportion",)


def test_an_op_takes_the_median_of_the_ranks():
    work = TraceSource(job(slow=1.2), 8).work(8, ONE)
    assert work.rank.ops[0].duration_s == pytest.approx(1.1)
    assert work.low < 1 < work.high


@pytest.mark.parametrize(
    ("graph", "told"),
    [
        (lambda: job(slow=4.0), "rank 1 of the trace computes 1.6 times as long"),
        (lambda: StepGraph((*job().ranks[:1], RankGraph(1, job().ranks[1].ops[:-1]))), "rank 1 .* runs other ops"),
        (
            lambda: replace(job(), exchanges=(Exchange("all_reduce", 8, {0: 1, 1: 1}, wire_s=1.0),)),
            "all_reduce of the trace carries activations",
        ),
        (
            lambda: replace(job(), exchanges=(Exchange("send_recv", 8, {0: 1, 1: 1}, wire_s=1.0, group="0->1"),)),
            "carries activations",
        ),
    ],
)
def test_ranks_that_are_not_alike_are_refused(graph, told):
    with pytest.raises(CdmppError, match=told):
        TraceSource(graph(), 8)


def test_what_a_trace_does_not_tell_is_refused():
    source = TraceSource(job(), 8)
    assert source.limits() == {"pp": 1, **dict.fromkeys(SPLITS, 1)}
    with pytest.raises(CdmppError, match="a trace does not tell what filter parallelism"):
        source.work(8, ParallelDegrees(filter=2))
    with pytest.raises(CdmppError, match="batch of a rank is 0"):
        source.work(0, ONE)
    with pytest.raises(CdmppError, match="batch of a traced rank is 0"):
        TraceSource(job(), 0)
