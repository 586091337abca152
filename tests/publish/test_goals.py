"""A target counts as reached only by the right rows, over all their seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.publish.goals import Goal, goal_table, goals
from cdmpp.evaluation.results import Result, Run, read_results
from cdmpp.training.metrics import latency_metrics


def row(value, seed=0, model="cdmpp", metric="mape", dataset="a100", split="by_task"):
    return Result("a100", dataset, split, seed, model, metric, value, Run("", "", "", 1, 1))


def test_means_over_seeds_and_ratios_of_the_same_seed():
    rows = [row(10.0), row(20.0, 1), row(99.0, split="random"), row(40.0, 0, "xgb"), row(50.0, 2, "xgb")]
    assert Goal("", "mape", 15, "a100", "by_task").measured(rows) == (15.0, 2)
    assert Goal("", "mape", 0.4, "a100", "by_task", over="xgb").measured(rows) == (0.25, 1)
    elsewhere = [*rows, row(80.0, 0, "xgb", dataset="a100-trees")]
    assert Goal("", "mape", 0.4, "a100", "by_task", over="xgb", over_dataset="a100-trees").measured(elsewhere) == (
        0.125,
        1,
    )
    assert Goal("", "median_ape", 10, "a100", "by_task").measured(rows) is None


@pytest.mark.parametrize(("value", "verdict"), [(15.0, "reached"), (15.2, "missed")])
def test_the_table_says_what_was_reached(value, verdict):
    lines = [line for line in goal_table([row(value)]) if "A100, unknown tasks" in line]
    assert len(lines) == 1 and lines[0].endswith(f"| {verdict} | 15 | {value:.3g} | 1 |")


def test_a_bias_below_zero_is_no_target_reached():
    split = "by_network_googlenet_to_resnet34"
    text = "\n".join(goal_table([row(-9.0, metric="bias_at_best", split=split)]))
    assert "| missed | 5 | -9 | 1 |" in text and text.count("not measured yet") == len(goals()) - 1


def test_every_goal_is_of_figures_that_were_measured():
    results = read_results(Path(__file__).parents[2] / "docs")
    metrics = latency_metrics(np.ones(1), np.ones(1), ["a"], ["a100"])
    for goal in goals():
        assert goal.metric in metrics and goal.measured(results) is not None, goal
