"""Real runs of plans on 2 and 4 ranks, whose figures are kept, are predicted without a trace."""

from __future__ import annotations

import numpy as np

from benchmarks.plans.gloo import examples, figures, orders
from benchmarks.plans.gloo_store import FILE
from cdmpp.platform.files import read_json


def test_steps_of_real_plans_and_their_order():
    kept = read_json(FILE)
    calm = {**kept, "runs": [run for run in kept["runs"] if not run["is_disturbed"]]}
    found = figures(calm, "layers")
    off = np.abs([one.predicted_s / one.measured_s - 1 for one in found])
    assert len(found) == 33 and off.mean() < 0.06 and np.median(off) < 0.045
    clear, right = orders(found)
    assert clear > 50 and right >= 0.95 * clear
    pipelines = [one for one in found if one.scenario.scheme == "pipeline" and one.scenario.replicas == 2]
    assert {examples(one.scenario) for one in pipelines} == {16, 32}
    assert all(abs(one.predicted_s / one.measured_s - 1) < 0.05 for one in pipelines)
