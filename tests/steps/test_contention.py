"""Ops that share a processor with exchanges take longer next to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.errors import DataError
from cdmpp.steps.replay import contention_free
from cdmpp.steps.step_graph import StepGraph
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
