"""Recomputed twins: which plans stand for two, and how many are said to be left out."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.plans.candidates import candidates
from cdmpp.plans.closed_form import ClosedForm
from cdmpp.plans.combinations import combinations
from cdmpp.plans.schedules import SCHEDULES
from cdmpp.plans.twins import twins

PLANS = candidates(
    combinations(["data", "pipeline"]), 4, 16, {"pp": 4}, [SCHEDULES[one]() for one in ("gpipe", "1f1b")]
)


def costs(step_s, memory_bytes):
    zero = np.zeros(len(PLANS))
    return ClosedForm(step_s, zero, zero, zero, zero, zero, memory_bytes, zero, zero, {}, {})


def test_a_plan_that_recomputes_for_nothing_is_left_out():
    """Every plan has a twin; one differs in its time, one in its memory, one cannot be, and one holds unknown bytes."""
    again = np.flatnonzero(PLANS.recompute == 1)
    step_s, memory = np.ones(len(PLANS)), np.ones(len(PLANS))
    step_s[again[0]] = 1.001
    memory[again[1]] = 0.999
    step_s[again[2]] = np.nan
    memory[[again[3] - 1, again[3]]] = np.nan
    found = twins(PLANS, costs(step_s, memory))
    assert np.flatnonzero(found).tolist() == again[3:].tolist()
    assert (PLANS.recompute[found] == 1).all()


@pytest.mark.parametrize("rows", [np.flatnonzero(PLANS.recompute == 1), np.flatnonzero(PLANS.recompute == 0), []])
def test_a_plan_without_a_twin_stays(rows):
    few = PLANS.taken(np.asarray(rows, np.int64))
    one = np.ones(len(few))
    assert not twins(few, ClosedForm(one, one, one, one, one, one, one, one, one, {}, {})).any()
