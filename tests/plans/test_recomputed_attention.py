"""Plans of a network whose attention runs again: closed form, replay and memory agree, and it costs what it should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cdmpp import Workload, devices
from cdmpp.collectives.topology import topology_of
from cdmpp.plans.lower import lower
from cdmpp.plans.question import Question
from cdmpp.plans.sources.predicted import PredictedSource
from cdmpp.steps.replay import replay

NETWORK = f"{Path(__file__).parent / 'script' / 'small_lm.py'}:make"


def question(how):
    workload = Workload(NETWORK, mode="training_step", recompute=how, attention="math")
    source = PredictedSource(workload, devices.get("h100"))
    names = ("data", "fsdp", "pipeline")
    return Question(source, lambda ranks: topology_of(ranks, "h100", cluster="dgx-h100"), 4, 16, names)


def test_closed_form_is_near_the_replay_and_scores_are_not_kept():
    found = {how: question(how) for how in ("none", "attention")}
    judged = {how: one.judged() for how, one in found.items()}
    for how, one in judged.items():
        for row in np.flatnonzero(one.fits & (one.plans.recompute == 0)):
            near = 0.06 if one.plans.degree("pp")[row] > 1 else 0.02
            topology = found[how].topology(4)
            lowered = lower(found[how].source, found[how].plan(one.plans, int(row)), topology, 16)
            replayed_s = replay(lowered.graph, topology).step_s
            assert one.costs.step_s[row] == pytest.approx(replayed_s, rel=near), (how, row)
    plain, again = (
        {
            (one.plans.degrees_of(row), int(one.plans.micro_batches[row]), int(one.plans.schedule[row])): row
            for row in np.flatnonzero(one.fits & (one.plans.recompute == 0)).tolist()
        }
        for one in judged.values()
    )
    both = [(plain[key], again[key]) for key in plain.keys() & again.keys()]
    assert len(both) > 5
    for before, after in both:
        assert judged["attention"].costs.step_s[after] > judged["none"].costs.step_s[before]
        assert judged["attention"].costs.memory_bytes[after] <= judged["none"].costs.memory_bytes[before]
    assert any(
        judged["attention"].costs.memory_bytes[after] < judged["none"].costs.memory_bytes[before]
        for before, after in both
    )
