"""Sailor's plans asked of the product, on layers with round numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.plans.sailor_data import Measured, Trained
from benchmarks.plans.sailor_job import Job
from cdmpp.collectives.curve import Curve

NAN = float("nan")
MS = 1e-3
LAYERS = {
    1: (Measured(3 * MS, 6 * MS, 0.7, 100, 40, 200), Measured(3 * MS, 6 * MS, 0.7, 50, 10, 100)),
    2: (Measured(4 * MS, 12 * MS, 0.7, 100, 40, 200), Measured(6 * MS, 12 * MS, 0.7, 50, 10, 100)),
}
"""The first layer waits for 1 of 3 ms of its forward pass of one example. The profiled network has 100 + 2 x 50 + 50
parameters, so that the update of one takes 2.8 ms, and adding its gradients 1.2."""


def wire(seconds: float) -> Curve:
    return Curve("", None, "nccl", "send_recv", 2, 1, np.array([1.0, 1e9]), np.array([seconds, seconds]))


TWO_STAGES = Trained("clariden", "toy", "", 2, 1, 2, 4, 1, 1, (1, 1), 1.0, 1.0, NAN, NAN)


def job(trained: Trained, between: float = MS, inside: float = MS) -> Job:
    return Job(trained, LAYERS, {"between": wire(between), "inside": wire(inside)})


def test_waiting_and_other_time_have_factors_of_their_own():
    one = job(TWO_STAGES)
    first, second = one.rows(host=0.5)[:2]
    assert (first.forward_s, second.forward_s) == pytest.approx((2.5 * MS, 3 * MS))
    assert one.rows(gpu=2.0)[0].forward_s == pytest.approx(5 * MS)
    assert one.rows()[0].update_s == pytest.approx(0.28)
    assert [row.saved_bytes for row in one.rows()] == [800, 400, 1600, 800]


def test_one_micro_batch_through_two_stages_by_hand():
    """3 + 3 + 6 + 6 ms of passes, two messages and the update of the larger stage.

    A message is a small one, a quarter of the result, and three steps of gathering quarters: 5 ms.
    """
    assert job(TWO_STAGES).step_s() == pytest.approx(18 * MS + 2 * 5 * MS + 0.28)


def test_several_micro_batches_add_their_gradients_and_messages_of_a_pair_come_one_by_one():
    """Free messages: slots of the slower stage, with 120 ms of adding, and the other one before and after them."""
    four = replace(TWO_STAGES, global_batch=4)
    slow = 3 + 6 + 120
    assert job(four, 1e-9, 1e-9).step_s() == pytest.approx((4 * slow + 3 + 6 + 60) * MS + 0.28, rel=0.02)


def test_replicas_reduce_their_gradients_after_the_passes():
    """One stage on two nodes: 2 steps of the ring."""
    one = replace(TWO_STAGES, replicas=2, stages=1, layers=(2,), global_batch=2)
    assert job(one).step_s() == pytest.approx(18 * MS + 2 * MS + 150 * 2.8 * MS)


def test_the_heaviest_stage_counts_with_all_its_micro_batches_in_flight():
    """The first stage: 5 x 400 bytes of parameters, gradients, states and bucket, 2 micro-batches that saved 800 each,
    and the 400 bytes of gradient that one of them makes."""
    four = replace(TWO_STAGES, global_batch=4)
    assert job(four).held_bytes() == pytest.approx(6 * 400 + 2 * 800)
    assert job(TWO_STAGES).held_bytes() == pytest.approx(6 * 400 + 800)
