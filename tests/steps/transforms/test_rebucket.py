"""Gradients in other buckets, whose steps are known by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import CdmppError
from cdmpp.steps.step_graph import Op, RankGraph
from cdmpp.steps.transforms.rebucket import rebucket
from cdmpp.trace.op_kind import kind_of_op
from tests.steps.toy_traced import MB, gradients, job, step_s


def test_one_bucket_has_nothing_to_hide_behind():
    one = rebucket(job(latency_s=0.25), 100 * MB)
    assert [e.bytes for e in one.exchanges] == [4 * MB]
    assert step_s(one) == pytest.approx(4 + 8 + 4.25 + 0.5)
    two = rebucket(job(latency_s=0.25), 2 * MB)
    assert [(e.bytes, e.after[0]) for e in two.exchanges] == [(2 * MB, 5), (2 * MB, 7)]
    assert step_s(two) == pytest.approx(4 + 8 + 2.25 + 0.5, rel=1e-3)


def test_buckets_of_the_old_size_change_nothing():
    for slow in (1.0, 1.5):
        assert step_s(rebucket(job(slow, 0.1), MB)) == pytest.approx(step_s(job(slow, 0.1)))


def test_launches_and_copies_move_with_their_buckets():
    call, copy = (
        Op(name, "backward", took_s, kind=kind_of_op(name, "backward"))
        for name, took_s in (("c10d::allreduce_", 0.1), ("x::copy_bucket_to_grad", 0.25))
    )
    old = job()
    ranks = []
    for rank in old.ranks:
        backward = [one for op in rank.ops[4:8] for one in (op, call)]
        ops = (*rank.ops[:4], *backward, *[copy] * 4, rank.ops[8])
        ranks.append(RankGraph(rank.rank, ops, gradients([4, 6, 8, 10])))
    exchanges = tuple(
        replace(one, after=dict.fromkeys((0, 1), 5 + 2 * n), before=dict.fromkeys((0, 1), (12 + n,)))
        for n, one in enumerate(old.exchanges)
    )
    traced = replace(old, ranks=tuple(ranks), exchanges=exchanges)
    assert step_s(rebucket(traced, MB)) == pytest.approx(step_s(traced))
    two = rebucket(traced, 2 * MB)
    assert [op.name for op in two.ranks[0].ops].count("c10d::allreduce_") == 2
    places = [place for place, op in enumerate(two.ranks[0].ops) if op.name.endswith("copy_bucket_to_grad")]
    assert [two.waits(0).get(place, ()) for place in places] == [(0,), (), (1,), ()]
    assert step_s(two) == pytest.approx(4 + 8.2 + 2 + 0.5 + 0.5)


def test_buckets_of_one_operator():
    one = job()
    ranks = tuple(replace(rank, gradients=gradients([7, 7], [4 * MB - 8, 8])) for rank in one.ranks)
    two = rebucket(replace(one, ranks=ranks), MB)
    assert [(e.bytes, e.after[0]) for e in two.exchanges] == [(4 * MB - 8, 7), (8, 7)]


def test_sharded_jobs_have_no_buckets():
    with pytest.raises(CdmppError, match="DistributedDataParallel"):
        rebucket(replace(job(), exchanges=()), MB)
