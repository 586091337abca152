"""Suggested runs: they can be made, and say something that is not known yet."""

import numpy as np
import pytest

from cdmpp.expression import FitSettings, RunTable, fit_runs, suggest
from cdmpp.expression.suggestion import corners


def table(repeats=1):
    """Machines of two GPUs a node; each configuration is made ``repeats`` times."""
    rows = [(gpus, -(-gpus // 2), batch) for gpus in (1, 2, 4, 8) for batch in (16, 64)] * repeats
    gpus, nodes, batch = np.array(rows, dtype=float).T
    noise = np.exp(np.random.default_rng(0).normal(0, 0.02, len(rows)))
    times_s = (4e-3 + 1e-3 * batch / gpus + 3e-3 * (nodes > 1)) * noise
    return RunTable.of({"gpus": gpus, "nodes": nodes, "batch": batch, "step_s": times_s}, "step_s")


@pytest.fixture(scope="module")
def fitted():
    return fit_runs(table(3), FitSettings(budget_s=1, resamples=8))


def test_suggested_runs_can_be_made_and_were_not_made_often(fitted):
    found = suggest(fitted, 5, [{"gpus": 16, "nodes": 8, "batch": 64}])
    assert found
    for one in found:
        gpus, nodes = one.point["gpus"], one.point["nodes"]
        assert nodes <= gpus <= 2 * nodes, "a node has two GPUs"
        assert gpus <= 16 and gpus == int(gpus)
        assert gpus > 8, "all smaller ones were made three times"
    assert one.width_after <= 0.98 * one.width_before


def test_runs_that_say_nothing_are_not_suggested(fitted):
    """A measured point that was made three times: no further run makes its interval shorter by much."""
    assert suggest(fitted, 3, [{"gpus": 4, "nodes": 2, "batch": 16}]) == ()


def test_corners_are_points_that_can_be(fitted):
    for point in corners(fitted):
        assert point["nodes"] <= point["gpus"] <= 2 * point["nodes"]


def test_layouts_are_suggested_for_no_more_than_twice_the_devices():
    rows = [(tp, dp, tp * dp) for tp in (1, 2, 4) for dp in (1, 2, 4) if tp * dp <= 4] * 2
    tp, dp, gpus = np.array(rows, dtype=float).T
    times_s = (0.1 + 1 / gpus + 0.02 * np.log2(tp)) * np.exp(np.random.default_rng(0).normal(0, 0.03, len(rows)))
    fitted = fit_runs(RunTable.of({"tp": tp, "dp": dp, "step_s": times_s}, "step_s"), FitSettings(budget_s=1))
    found = suggest(fitted, 8, [{"tp": 4, "dp": 4}])
    assert found and all(one.point["tp"] * one.point["dp"] <= 8 for one in found)
