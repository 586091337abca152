"""Rules of jobs: points that cannot be are refused, and what the runs themselves break is allowed."""

import numpy as np
import pytest

from cdmpp.errors import DataError, UsageError
from cdmpp.expression import FitSettings, RunTable, fit_runs
from cdmpp.expression.job_rules import JobRules
from cdmpp.expression.points import read_points

RUNS = {"gpus": [1, 2, 4, 8], "nodes": [1, 1, 2, 2], "batch": [8, 16, 8, 16], "chunks": [1, 2, 1, 4]}
LAYOUT = {"gpus": [1, 2, 4, 8], "tp": [1, 2, 2, 2], "dp": [1, 1, 2, 2], "pp": [1, 1, 1, 2]}


def rules(columns):
    return JobRules.of({name: np.array(values, dtype=float) for name, values in columns.items()})


def broken(columns, **point):
    return rules(columns).broken_by({name: np.array([float(value)]) for name, value in point.items()})


@pytest.mark.parametrize(
    ("point", "told"),
    [
        ({"gpus": 2, "nodes": 4, "batch": 8, "chunks": 1}, "nodes=4, gpus=2 contradict each other: nodes is at most"),
        ({"gpus": 2.5, "nodes": 1, "batch": 8, "chunks": 1}, "gpus is 2.5: expected a whole number"),
        ({"gpus": 0.5, "nodes": 1, "batch": 8, "chunks": 1}, "gpus is 0.5: expected a whole number"),
        ({"gpus": 2, "nodes": 1, "batch": 8, "chunks": 1.5}, "chunks is 1.5: expected a whole number"),
        ({"gpus": 2, "nodes": 1, "batch": 8, "chunks": 16}, "chunks=16, batch=8 contradict each other"),
    ],
)
def test_points_that_cannot_be_are_refused(point, told):
    table = RunTable.of(RUNS | {"step_s": [4, 3, 2, 1]}, "step_s")
    with pytest.raises(UsageError, match=f"the point cannot be: {told}"):
        read_points(table, [point])


def test_layouts_multiply_to_the_devices():
    assert broken(LAYOUT, gpus=16, tp=2, dp=4, pp=2) is None
    assert "gpus is tp * dp * pp in all runs" in broken(LAYOUT, gpus=8, tp=2, dp=4, pp=2)[1]


def test_a_product_of_two_kinds_is_no_rule_where_there_is_a_third():
    flat = LAYOUT | {"pp": [1, 1, 1, 1], "gpus": [1, 2, 4, 4]}
    assert broken(flat, gpus=8, tp=2, dp=2, pp=2) is None


def test_a_rule_that_runs_break_is_none():
    """Servers of parameters have nodes of their own."""
    assert broken({"gpus": [1, 2, 4], "nodes": [2, 3, 5]}, gpus=8, nodes=10) is None


def test_more_stages_than_layers_may_be():
    """Embeddings and heads are stages, too, and some frameworks leave stages empty."""
    assert broken({"pp": [1, 2, 4], "layers": [8, 8, 8], "gpus": [1, 2, 4]}, pp=16, layers=8, gpus=16) is None


def test_gpus_of_a_node_may_be_a_mean():
    columns = {"gpus": [3, 6, 8], "nodes": [2, 2, 2], "gpus_per_node": [1.5, 3, 4], "step_s": [3, 2, 1]}
    assert RunTable.of(columns, "step_s", ["gpus", "gpus_per_node"]).factors["gpus_per_node"][0] == 1.5


def test_a_count_that_is_no_whole_number_is_refused_by_row():
    with pytest.raises(DataError, match="column gpus, row 2: 2.5 is no whole number; rename the column"):
        RunTable.of(RUNS | {"gpus": [1, 2.5, 4, 8], "step_s": [4, 3, 2, 1]}, "step_s")


def test_a_node_with_more_devices_than_any_that_was_seen_is_beyond_the_range():
    gpus, nodes = np.array([1.0, 2, 4, 4, 8, 8]), np.array([1.0, 1, 2, 2, 4, 4])
    fitted = fit_runs(RunTable.of({"gpus": gpus, "nodes": nodes, "step_s": 1 / gpus + 0.1}, "step_s"),
                      FitSettings(budget_s=1, resamples=4))  # fmt: skip
    found = fitted.predict([{"gpus": 8, "nodes": 1}, {"gpus": 8, "nodes": 4}])
    assert found.outside == (("ceil(gpus / nodes)",), ())
    widths = found.high_s / found.low_s
    assert widths[0] > widths[1]
