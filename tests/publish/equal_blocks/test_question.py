"""The best plans of equal blocks are those of all plans, one by one; what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.peers.equal_blocks.question import BlockQuestion, Space
from cdmpp.errors import CdmppError
from tests.publish.equal_blocks.toy_blocks import HOST, MB, TIER, ToyBlocks

FAR = replace(TIER, ranks=1024)
NEAR = replace(TIER, seconds=lambda kind, sizes, ranks: TIER.seconds(kind, sizes, ranks) / 8, ranks=4, is_filled=True)
QUESTION = BlockQuestion(ToyBlocks(), (NEAR, FAR), 16, 32, 4, 400 * MB, HOST)


def test_best_plans_are_the_fastest_of_all():
    best = QUESTION.best(50)
    step_s = np.sort(np.concatenate([QUESTION.judged(shape).step.step_s for shape in QUESTION.shapes()]))
    assert np.array_equal(best.step_s, step_s[:50])
    assert best.fit == len(step_s) and best.asked > best.fit > 1000
    assert len({*best.plans}) == 50


def test_all_settings_are_counted():
    """On 2 ranks that replicate or divide two blocks, one example each, by hand."""
    asked = BlockQuestion(ToyBlocks(2), (FAR,), 2, 2, 1, 1e12, None, Space(host=False))
    by_shape = {(one.pp, one.dp, one.stages): asked.count(one) for one in asked.shapes()}
    # ways: 3 recomputed x 3 exchanges + 2 that gather again = 11 a micro-batch
    assert by_shape == {(1, 2, 1): 11 * 2 * 2, (2, 1, 1): 11 * 2}
    assert sum(len(asked.plans(one)) for one in asked.shapes()) == sum(by_shape.values())


def test_plans_that_fit_less_memory_are_some_of_those_that_fit_more():
    few, many = (replace(QUESTION, memory_limit_bytes=limit * MB).best(1) for limit in (150, 400))
    assert 0 < few.fit < many.fit and few.step_s[0] >= many.step_s[0]


def test_a_network_that_must_be_used_as_a_whole_takes_no_part_of_it():
    for shape in QUESTION.shapes():
        own = QUESTION.plans(shape)
        fits = own.taken(QUESTION.can_be(own))
        joined = np.where(fits.message_tier == 0, shape.pp, 1) * np.where(fits.replica_tier == 0, shape.dp, 1)
        joined *= np.where(fits.split_tier == 0, shape.tp, 1)
        assert np.isin(joined, (1, 2, 4)).all()


def test_partial_rounds_are_left_out():
    shape = next(one for one in QUESTION.shapes() if one.stages > 1 and one.pp == 4)
    own = QUESTION.plans(shape)
    assert (own.micro_batches % 4 > 0).any()
    assert (own.taken(QUESTION.can_be(own)).micro_batches % 4 == 0).all()


def test_what_nobody_can_answer_is_refused():
    with pytest.raises(CdmppError, match="link nobody knows for this device"):
        replace(QUESTION, host=None)
    for limit in (float("nan"), -1.0, 0, "80"):
        with pytest.raises(CdmppError, match="memory_limit_bytes"):
            replace(QUESTION, memory_limit_bytes=limit)
    with pytest.raises(CdmppError, match="tiers is empty"):
        replace(QUESTION, tiers=())
    with pytest.raises(CdmppError, match="ranks"):
        replace(QUESTION, ranks=0)
    with pytest.raises(CdmppError, match="count"):
        QUESTION.best(0)
