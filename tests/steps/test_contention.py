"""Ops that share a processor with exchanges take longer next to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import DataError
from cdmpp.steps.exchange import Exchange
from cdmpp.steps.replay import contention_free, replay
from cdmpp.steps.step_graph import Op, RankGraph, StepGraph
from cdmpp.steps.transforms.links import scale_bandwidth, without_wire_time
from cdmpp.steps.transforms.rebucket import rebucket
from tests.steps.toy_traced import MB, job, step_s


def shared_job() -> StepGraph:
    """Exchanges take half of a processor: the last three backward ops took a second longer for the one beside them."""
    plain = job()
    took = [1.0] * 4 + [2.0, 2.5, 2.5, 2.5] + [0.5]
    ranks = tuple(
        replace(rank, ops=tuple(replace(op, duration_s=s) for op, s in zip(rank.ops, took, strict=True)))
        for rank in plain.ranks
    )
    return replace(plain, ranks=ranks, processor_share=0.5)


def test_ops_are_longer_next_to_an_exchange_that_shares_their_processor():
    traced = shared_job()
    assert step_s(traced) == pytest.approx(4 + 2 + 3 * 2.5 + 1 + 0.5)  # as it was traced
    bare = contention_free(traced)
    assert [op.duration_s for op in bare.ranks[0].ops[4:8]] == pytest.approx([2.0] * 4)
    assert contention_free(bare) is bare and contention_free(job()) == job()
    assert step_s(bare) == pytest.approx(step_s(traced), rel=2e-3)
    one = rebucket(traced, 4 * MB)  # nothing left to compute beside it
    assert step_s(one) == pytest.approx(4 + 8 + 4 + 0.5, rel=2e-3)
    assert step_s(rebucket(replace(traced, processor_share=0.0), 4 * MB)) == pytest.approx(4 + 9.5 + 4 + 0.5)
    assert step_s(without_wire_time(traced)) == pytest.approx(4 + 8 + 0.5, rel=2e-3)
    assert scale_bandwidth(traced, 0.25).processor_share == pytest.approx(0.25)
    assert scale_bandwidth(replace(traced, processor_share=0.3), 1.44).processor_share == pytest.approx(0.36)
    faster = scale_bandwidth(traced, 1.6)
    assert faster.processor_share == pytest.approx(0.5)  # two that are busy have half of it each
    assert step_s(faster) == pytest.approx(4 + 8 + 3 * 0.5 / 1.6 + 1 / 1.6 + 0.5, rel=2e-3)
    with pytest.raises(DataError, match=r"take 1\.0 of a processor"):
        replace(traced, processor_share=1.0)


def two_ranks(*seconds: float, wire_s: float = 0.25) -> StepGraph:
    """Each rank has one op of so many seconds, then both exchange."""
    ranks = tuple(RankGraph(rank, (Op("x", "backward", s),)) for rank, s in enumerate(seconds))
    ends = dict.fromkeys(range(len(ranks)), (1,))
    return StepGraph(ranks, (Exchange("all_reduce", MB, dict.fromkeys(ends, 0), ends, wire_s=wire_s),))


def test_ranks_of_one_processor_share_it_evenly():
    apart = two_ranks(2.0, 1.0)
    assert step_s(apart) == pytest.approx(2.25)
    assert step_s(replace(apart, processors=("a", "b"))) == pytest.approx(2.25)
    shared = replace(apart, processors=("a", "a"))
    assert step_s(shared) == pytest.approx(3.25)  # rank 1 ends at 2, rank 0 goes on alone
    busy = replay(shared).busy_s
    assert (busy[0], busy[1]) == pytest.approx((3.0, 2.0))
    four = replace(two_ranks(1.0, 1.0, 1.0, 2.0), processors=("a", "b", "a", "b"))
    assert step_s(four) == pytest.approx(3.25)
    with pytest.raises(DataError, match="1 processors for 2 ranks: name that of each, or none"):
        replace(apart, processors=("a",))


def test_an_exchange_takes_its_share_of_a_processor_that_ranks_share():
    ranks = tuple(RankGraph(rank, (Op("x", "forward", 0.0), Op("y", "backward", 1.0))) for rank in range(2))
    ends = {0: (2,), 1: (2,)}
    sent = Exchange("all_reduce", MB, {0: 0, 1: 0}, ends, wire_s=1.0)
    graph = StepGraph(ranks, (sent,), processor_share=0.5, is_contention_free=True, processors=("a", "a"))
    assert step_s(graph) == pytest.approx(2.5, rel=2e-3)  # a quarter of the processor for a second, then half of it
    assert step_s(replace(graph, processors=())) == pytest.approx(1.5, rel=2e-3)


def test_messages_take_half_and_ranks_of_a_processor_each_their_part():
    ranks = tuple(RankGraph(rank, (Op("x", "forward", 0.0), Op("y", "backward", 1.0))) for rank in range(2))
    message = Exchange("send_recv", MB, {0: 0, 1: 0}, {}, group="0->1", wire_s=1.0)
    graph = StepGraph(ranks, (message,), processor_share=0.5, is_contention_free=True)
    assert step_s(graph) == pytest.approx(1.25, rel=2e-3)  # a quarter of the processor is lost for a second
    alone = replace(graph, ranks=(*ranks, replace(ranks[0], rank=2)), processors=("a", "b", "a"))
    # rank 2 sends nothing, yet loses what the message of rank 0 takes from their processor: an eighth for a second
    assert replay(alone).busy_s[2] == pytest.approx(replay(alone).busy_s[0], rel=2e-3)
    assert replay(alone).busy_s[2] == pytest.approx(2.125, rel=4e-3)
