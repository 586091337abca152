"""Real runs of plans on 2 and 4 ranks, whose figures are kept, are predicted without a trace and from traces."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.plans.gloo import apart, orders
from benchmarks.plans.gloo_predicted import examples, figures
from benchmarks.plans.gloo_store import FILE
from cdmpp.platform.files import read_json

RUNS = read_json(FILE)


@pytest.mark.parametrize("run", range(len(RUNS)))
@pytest.mark.parametrize(("by", "number", "most"), [("layers", 36, 0.055), ("trace", 32, 0.045)])
def test_steps_of_real_plans_and_their_order(run, by, number, most):
    found = figures(RUNS[run], by)
    off = np.array([one.predicted_s / one.measured_s - 1 for one in found])
    assert len(found) == number and np.abs(off).mean() < most
    clear, right = orders(found)
    assert clear > 40 and right >= 0.95 * clear
    for scheme in ("ddp", "fsdp", "pipeline"):
        assert abs(np.mean([o for o, one in zip(off, found, strict=True) if one.scenario.scheme == scheme])) < 0.08
    pipelines = [one for one in found if one.scenario.scheme == "pipeline" and one.scenario.replicas == 2]
    assert {examples(one.scenario) for one in pipelines} == {32}


def test_the_same_job_is_within_a_few_per_cent_of_itself():
    rounds = apart([figures(run, "layers") for run in RUNS])["another round of the same run"]
    assert len(rounds) > 90 and 0.005 < np.mean(rounds) < 0.04
