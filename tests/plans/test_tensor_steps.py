"""Kept steps of tensor and pipeline parallel decoders are predicted from their parts."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.plans.decoder_jobs import CASES, plan_of
from benchmarks.plans.tensor_steps import FILE, Parts, orders
from cdmpp.platform.files import read_json


@pytest.fixture(scope="module")
def found():
    parts = Parts(read_json(FILE)["cases"])
    return [(case, one["step_s"], parts.step_s(case, one)) for case, one in parts.cases]


def test_parts_that_were_timed_by_themselves_say_what_steps_take(found):
    assert len(found) >= 18
    assert np.mean([abs(p / s - 1) for _, s, p in found]) <= 0.12
    clear, right = orders(found)
    assert clear >= 30 and right >= 0.9 * clear


def test_a_collective_that_takes_longer_makes_its_plans_longer(found):
    stored = read_json(FILE)["cases"]
    slower = [{**one, "exchanges": [[*row[:-1], 2 * row[-1]] for row in one["exchanges"]]} for one in stored]
    parts = Parts(slower)
    for (case, one), (_, _, before_s) in zip(parts.cases, found, strict=True):
        after_s = parts.step_s(case, one)
        assert after_s > before_s if case.tp > 1 else after_s == pytest.approx(before_s)


def test_every_case_is_a_plan():
    assert all(plan_of(case).ranks == case.ranks for case in CASES)
